"""`torchkiln build`: from the chosen cells to images, in an OCI layout or in a Docker engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click
from click.core import ParameterSource

from torchkiln.cli.shared import console
from torchkiln.cli.shared.context import Context
from torchkiln.cli.shared.options import images_folder, layout_option
from torchkiln.cli.shared.selection import Chosen, selection
from torchkiln.errors import KilnError
from torchkiln.index.lazy import LateIndex
from torchkiln.model.layer_format import DEFAULT_FORMAT, LAYER_FORMATS, LayerFormat
from torchkiln.store.root import cache_root

if TYPE_CHECKING:
    from torchkiln.model.cell import Cell

_FORMATS = ("oci", "oci-archive", "docker-archive")
_ONLY = {
    "embedded": ("output", "form", "layer_format", "dry_run", "load", "ahead", "plain_http", "smoke", "tier"),
    "docker": ("builder", "cache_from", "cache_to"),
}


@click.command()
@selection
@images_folder
@layout_option("the OCI layout to build into; several tags in it share blobs")
@click.option(
    "--engine",
    type=click.Choice(["embedded", "docker"]),
    default="embedded",
    show_default=True,
    help="docker: BuildKit builds the rendered Dockerfile, the image is in the engine",
)
@click.option(
    "--load", is_flag=True, help="embedded: put the image into the Docker engine too, tag and aliases"
)
@click.option(
    "--ahead",
    metavar="REGISTRY/REPOSITORY",
    help="embedded: send each layer there while others are made; no tag: `publish` finds them and sets it",
)
@click.option("--plain-http", is_flag=True, help="--ahead: no https, though the registry is not this machine")
@click.option("--smoke", is_flag=True, help="embedded: run the smoke tests inside it; exit 10 if one fails")
@click.option("--tier", type=click.IntRange(0, 3), default=0, show_default=True, help="--smoke: up to this")
@click.option("--builder", help="docker: the buildx builder, remote or in Kubernetes")
@click.option("--cache-from", multiple=True, help="docker: handed on to buildx")
@click.option("--cache-to", multiple=True, help="docker: handed on to buildx")
@click.option(
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    default="oci",
    show_default=True,
    help="besides the layout, an archive beside it: <tag>.FORMAT.tar",
)
@click.option(
    "--layer-format",
    type=click.Choice(LAYER_FORMATS),
    default=DEFAULT_FORMAT,
    show_default=True,
    help="zstd: smaller, pulled faster; other digests, same content",
)
@click.option(
    "--base",
    metavar="FILE|REF",
    help="take the base from this file (made by `base export`); docker: or from this image",
)
@click.option(
    "--tools",
    metavar="FILE",
    help="devel: take the OS's tools from this file (made by `base export --tools NAME`)",
)
@click.option(
    "--locked", is_flag=True, help="end with exit 6 when the base, or devel's tools, are not the locked"
)
@click.option("--dry-run", is_flag=True, help="tell what would be done; do nothing")
@click.option("--json", "as_json", is_flag=True, help="the result as JSON on stdout")
@click.option("--quiet", "-q", is_flag=True, help="no progress, no summary")
@click.pass_context
def build(
    ctx: click.Context,
    chosen: Chosen,
    images: Path,
    output: Path,
    engine: str,
    load: bool,
    ahead: str | None,
    plain_http: bool,
    smoke: bool,
    tier: int,
    form: str,
    layer_format: LayerFormat,
    builder: str | None,
    cache_from: tuple[str, ...],
    cache_to: tuple[str, ...],
    base: str | None,
    tools: str | None,
    locked: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Build the chosen cells from their locks. stdout: each image's digest (or --json).

    Several cells go on after one failed; the exit code is then the worst of them.
    """
    _refuse_others_options(ctx, engine)
    if tier and not smoke:
        raise click.UsageError("--tier says how far --smoke goes, which is not given")
    cells, matrix, facts = chosen.cells(must_name=True)
    context = Context(matrix, facts, images, base, tools, locked, quiet)
    way: _Way = _Embedded(context, output.absolute(), form, layer_format, load, ahead, plain_http)
    if engine == "docker":
        from torchkiln.cli.shared.on_docker import OnDocker

        way = OnDocker(context, builder, cache_from, cache_to)
    if smoke:
        from torchkiln.cli.shared import built_smoke

        session = built_smoke.session_of(chosen, images)
    failures: list[KilnError] = []
    for cell in cells:
        try:
            if dry_run:
                _tell(_forecast(context, cell, layer_format), as_json)
            else:
                told = way.build(cell)
                report = built_smoke.checked(told, session, tier, alone=len(cells) == 1) if smoke else None
                click.echo(json.dumps(told) if as_json else told["digest"])
                if report:
                    built_smoke.demand_pass(report)
        except KilnError as error:
            if len(cells) == 1:
                raise
            console.say(f"torch {cell.torch}, CUDA {cell.cuda}, {cell.flavor}, {cell.os}: {error.message}")
            failures.append(error)
    if len(cells) > 1 and as_json and not dry_run:
        codes = [error.exit_code for error in failures]
        click.echo(json.dumps({"built": len(cells) - len(failures), "failed": len(failures), "codes": codes}))
    if failures:
        raise console.worst(failures, len(cells), "cells")


class _Way(Protocol):
    """An engine at the command line."""

    def build(self, cell: Cell) -> dict[str, Any]:
        """Build, show the summary, give what --json prints."""


def _refuse_others_options(ctx: click.Context, engine: str) -> None:
    """What belongs to the other engine would be ignored, and nobody would know."""
    for other, names in _ONLY.items():
        for parameter in ctx.command.params:
            given = ctx.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
            if other != engine and parameter.name in names and given:
                raise click.UsageError(f"{parameter.opts[0]} is for --engine {other}")


@dataclass(frozen=True, slots=True)
class _Embedded:
    """Our own engine, into an OCI layout."""

    context: Context
    layout: Path
    form: str
    layer_format: LayerFormat
    load: bool
    ahead: str | None
    plain_http: bool

    def build(self, cell: Cell) -> dict[str, Any]:
        from torchkiln.build import build as builder
        from torchkiln.build.environment import Environment
        from torchkiln.cli.shared.upload_ahead import uploads_ahead

        if self.load:
            from torchkiln.cli.shared.on_docker import engine_to_load_into, load_into
        context, store = self.context, self.context.store()
        into = engine_to_load_into() if self.load else None  # asked before the work, not behind it
        locked = context.locked(cell)
        with (
            console.progress(quiet=context.quiet) as observer,
            uploads_ahead(self.ahead, self.plain_http, store, observer) as ahead,
        ):
            built = builder.build(
                locked,
                context.matrix,
                context.facts,
                self.layout,
                Environment(
                    store=store,
                    fetcher=LateIndex(store),
                    observer=observer,
                    say=context.say,
                    on_layer=ahead.take,
                ),
                options=builder.BuildOptions(sources=context.sources(), layer_format=self.layer_format),
            )
            sent = ahead.settled()
            loaded = load_into(into, built.image, cell, context, observer) if into else ()
        told = console.numbers(built) | ({"loaded": list(loaded)} if into else {}) | sent
        if self.form != "oci":
            from torchkiln.oci.archive import archive_image

            archive = archive_image(built.image, self.form, repository=context.matrix.repository)  # type: ignore[arg-type]
            told["archive"] = str(archive)
        if not context.quiet:
            console.summary(built)
        told |= context.trust_of(locked)
        if self.form != "oci":
            context.say(f"archive: {told['archive']}")
        if into:
            context.say(f"in {into.host} ({into.kind} {into.version}): {', '.join(loaded)}")
        return told


def _forecast(context: Context, cell: Cell, layer_format: LayerFormat) -> dict[str, Any]:
    from torchkiln.build.known import forecast
    from torchkiln.plan.load import plan_locked
    from torchkiln.store.store import Store

    plan = plan_locked(context.locked(cell), context.matrix, context.facts)
    return {"tag": plan.tag, "layer_format": layer_format, **forecast(plan, Store(cache_root()))}


def _tell(told: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(told))
        return
    click.echo(told["tag"])
    for step in told["layers"]:
        size = "?" if step["bytes"] is None else console.size(step["bytes"])
        click.echo(f"  {step['do']:<8} {size:>9}  {step['what']}")
    unknown = f", {told['of_unknown_size']} of unknown size" if "of_unknown_size" in told else ""
    click.echo(
        f"  to download: {console.size(told['download_bytes'])} in {told['downloads']} wheels{unknown}"
    )
    if (layer_format := told["layer_format"]) != DEFAULT_FORMAT:
        click.echo(f"  then each layer is compressed by {layer_format}, but for those that the cache has so")
