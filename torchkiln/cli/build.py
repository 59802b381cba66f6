"""`torchkiln build`: builds images from locks, into an OCI layout or in a Docker engine."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from torchkiln.cli.shared import console, terminal
from torchkiln.cli.shared.cache_bound import excess, max_size_option
from torchkiln.cli.shared.context import BuildContext
from torchkiln.cli.shared.machines import Machines, build_jobs, machine_options
from torchkiln.cli.shared.options import (
    format_option,
    gathered,
    images_folder,
    json_option,
    layer_format_option,
    layout_option,
    locked_option,
    mirror_option,
    quiet_option,
    refuse,
    smoke_option,
    vault_option,
)
from torchkiln.cli.shared.selection import CellOptions, own_cell_selection
from torchkiln.cli.shared.tables import beside
from torchkiln.cli.shared.terminal import echo, print_error
from torchkiln.errors import ConfigError, KilnError
from torchkiln.model.layer import DEFAULT_FORMAT, LayerFormat
from torchkiln.store.store import cache_root

if TYPE_CHECKING:
    from torchkiln.cli.shared.on_docker import DockerBuilder
    from torchkiln.engine.image import BuildResult
    from torchkiln.model.cell import Cell
    from torchkiln.model.layer import Blob
    from torchkiln.model.progress import Observer
    from torchkiln.registry.push import BlobUploads
    from torchkiln.store.store import Store

T = TypeVar("T")
_SHORT = 0.05  # seconds; shorter steps are only in the total
_WHOLE = ("form", "dry_run", "load", "ahead", "plain_http", "smoke", "tier")  # not for jobs
_ONLY = {
    "embedded": (*_WHOLE, "output", "layer_format", "engine_at", "layer"),
    "docker": ("base", "builder"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Buildx:
    """The options for Docker's BuildKit."""

    builder: str | None
    base: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ahead:
    """Where layers are uploaded to during the build, and whether the image is loaded into an engine."""

    load: bool
    ahead: str | None  # REGISTRY/REPOSITORY
    plain_http: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tests:
    """The smoke tests to run in each image."""

    smoke: bool | None
    tier: int | None


@click.command()
@own_cell_selection
@images_folder
@layout_option("the OCI layout to build into; images in it share blobs")
@click.option(
    "--engine",
    type=click.Choice(["embedded", "docker"]),
    default="embedded",
    show_default=True,
    help="docker: build the rendered Dockerfile with BuildKit; the image stays in the engine",
)
@gathered(
    "early",
    _Ahead,
    click.option("--load", is_flag=True, help="embedded: also load the image into the Docker engine"),
    click.option(
        "--ahead",
        metavar="REGISTRY/REPOSITORY",
        help="embedded: upload layers during the build; `publish` then finds them there and sets the tags",
    ),
    click.option("--plain-http", is_flag=True, help="with --ahead: use http for a remote registry"),
)
@gathered(
    "tests",
    _Tests,
    smoke_option,
    click.option(
        "--tier",
        type=click.IntRange(0, 3),
        help="as --smoke, with the checks up to this tier  [default: tier 0; with GPUs those that the gate's"
        " policy requires; with two GPUs also tier 2]",
    ),
)
@format_option
@layer_format_option
@gathered(
    "buildx",
    _Buildx,
    click.option("--builder", metavar="NAME", help="docker: the buildx builder"),
    click.option("--base", metavar="IMAGE", help="docker: build on this image instead of torchkiln's base"),
)
@machine_options
@locked_option
@click.option("--dry-run", is_flag=True, help="print what would be built; build nothing")
@mirror_option
@vault_option
@max_size_option
@json_option
@quiet_option
@click.pass_context
def build(
    ctx: click.Context,
    chosen: CellOptions,
    images: Path,
    output: Path,
    engine: str,
    early: _Ahead,
    tests: _Tests,
    form: str,
    layer_format: LayerFormat,
    buildx: _Buildx,
    machines: Machines,
    locked: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Build the images of the selected cells from their locks; print their digests.

    If one of several cells fails, the others are still built; the exit code is the highest of the failures.
    """
    for other, names in _ONLY.items():  # they would be ignored
        if other != engine:
            refuse(ctx, names, f"is for --engine {other}")
    smoke, tier = tests.smoke, tests.tier
    if tier is not None:
        if smoke is False and ctx.get_parameter_source("smoke") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--tier cannot be used with --no-smoke")
        smoke = True
    cells, matrix, facts = chosen.cells(must_name=True)
    context = BuildContext(matrix, facts, images, locked, quiet)
    if machines.layer or machines.engine_at:
        refuse(ctx, _WHOLE, "cannot be used with --layer and --on")
        build_jobs(ctx, context, cells, machines, as_json=as_json)
        return
    image_builder: _EmbeddedBuilder | DockerBuilder
    image_builder = _EmbeddedBuilder(context, output.absolute(), form, layer_format, early, machines)
    if engine == "docker":
        from torchkiln.cli.shared.on_docker import DockerBuilder
        from torchkiln.docker.build import BuildxOptions

        options = BuildxOptions(**asdict(buildx), cache_from=machines.cache_from, cache_to=machines.cache_to)
        image_builder = DockerBuilder(context, options)
    runs = None
    if engine == "embedded" and smoke is not False and not dry_run:
        from torchkiln.cli.shared.smoke_output import BuildSmoke

        runs = BuildSmoke(context, demanded=bool(smoke), tier=tier)
    failures: list[KilnError] = []
    for cell in cells:
        try:
            if dry_run:
                _print_forecast(context, cell, layer_format, as_json)
            else:
                result = image_builder.build(cell)
                failed = runs.of_cell(result, cell, alone=len(cells) == 1) if runs else None
                click.echo(json.dumps(result) if as_json else result["digest"])
                if failed:
                    raise failed
        except KilnError as error:
            if len(cells) == 1:
                raise
            kept = f", GPUs {','.join(cell.gpus)}" if cell.gpus else ""
            name = f"torch {cell.torch}, CUDA {cell.cuda}, {cell.flavor}, {cell.os}{kept}"
            print_error(f"{name}: {error.message}", error.hint)
            failures.append(error)
    if len(cells) > 1 and as_json and not dry_run:
        codes = [error.exit_code for error in failures]
        click.echo(json.dumps({"built": len(cells) - len(failures), "failed": len(failures), "codes": codes}))
    if not dry_run and engine == "embedded" and (line := excess(context.store())):
        context.say(line)
    if failures:
        raise console.worst(failures, len(cells), "cells")


@dataclass(frozen=True, slots=True)
class _EmbeddedBuilder:
    """Builds with torchkiln itself, into an OCI layout."""

    context: BuildContext
    layout: Path
    form: str
    layer_format: LayerFormat
    early: _Ahead
    machines: Machines

    def build(self, cell: Cell) -> dict[str, Any]:
        from torchkiln.engine import build as builder
        from torchkiln.engine.environment import open_environment
        from torchkiln.plan.load import plan_locked

        if self.early.load:
            from torchkiln.cli.shared.on_docker import load_into
            from torchkiln.docker.daemon import find_engine
        context, store = self.context, self.context.store()
        into = find_engine(builds=False) if self.early.load else None  # before the build: fail early
        locked = context.locked(cell)
        if self.early.ahead and cell.own_use:
            raise ConfigError(
                "--ahead would upload modified NVIDIA libraries (--own-use)",
                hint="build without --ahead; if you have the right to distribute the image, then run:"
                " torchkiln push --licence-confirmed",
            )
        context.keep(locked)
        caches = self.machines.open_caches(cell)
        more: dict[str, Any] = {}
        with (
            console.progress(quiet=context.quiet) as observer,
            _uploads_ahead(self.early, store, observer) as uploads,
        ):

            def finished(layer: Blob) -> None:
                if uploads:
                    uploads.submit(layer.digest, store.blob(layer.digest), layer.size)

            environment = open_environment(store, observer=observer, say=context.say, on_layer=finished)
            if caches:
                caches.take(plan_locked(locked, context.matrix, context.facts), environment)
            built = builder.build(
                locked,
                context.matrix,
                context.facts,
                self.layout,
                environment,
                options=builder.BuildOptions(sources=context.sources, layer_format=self.layer_format),
            )
            if caches:
                built, _ = _timed("cache", built, lambda: caches.give(built.image))
            if uploads:  # an error of the registry is raised here; the image is built nevertheless
                built, blobs = _timed("upload", built, uploads.settle)
                more["ahead"] = {"bytes_sent": sum(blob.sent for blob in blobs), "blobs": len(blobs)}
            if into:
                built, loaded = _timed(
                    "load", built, lambda: load_into(into, built.image, cell, context, observer)
                )
                more["loaded"] = list(loaded)
        if self.form != "oci":
            from torchkiln.oci.archive import archive_image

            repository = context.matrix.repository
            built, archive = _timed(
                "archive",
                built,
                lambda: archive_image(built.image, self.form, repository=repository),  # type: ignore[arg-type]
            )
            more["archive"] = str(archive)
        if not context.quiet:
            console.summary(built)
        result = console.numbers(built) | more | context.trust_of(locked)
        if "archive" in more:
            context.say(f"archive: {more['archive']}")
        if into:
            context.say(f"loaded into {into.host} ({into.kind} {into.version}): {', '.join(loaded)}")
        return result


def _timed(stage: str, built: BuildResult, step: Callable[[], T]) -> tuple[BuildResult, T]:
    """Run *step*; return *built* with the time that *step* took, and the result of *step*."""
    started = time.monotonic()
    result = step()
    seconds = time.monotonic() - started
    *stages, (total, before) = built.seconds
    if seconds >= _SHORT:
        stages.append((stage, seconds))
    return replace(built, seconds=(*stages, (total, before + seconds))), result


def _print_forecast(context: BuildContext, cell: Cell, layer_format: LayerFormat, as_json: bool) -> None:
    from torchkiln.engine.known import forecast
    from torchkiln.plan.load import plan_locked
    from torchkiln.store.store import Store

    plan = plan_locked(context.locked(cell), context.matrix, context.facts)
    found = {"tag": plan.tag, "layer_format": layer_format, **forecast(plan, Store(cache_root()))}
    if as_json:
        click.echo(json.dumps(found))
        return
    echo(plan.tag)
    for step in found["layers"]:
        size = "?" if step["bytes"] is None else console.size(step["bytes"])
        echo(beside(f"  {step['do']:<8} {size:>9}  ", step["what"], terminal.columns(err=False)))
    unknown = f", {found['of_unknown_size']} of unknown size" if "of_unknown_size" in found else ""
    echo(f"  to download: {console.size(found['download_bytes'])} in {found['downloads']} wheels{unknown}")
    if layer_format != DEFAULT_FORMAT:
        echo(f"  then layers without a {layer_format} copy in the cache are compressed")


@contextmanager
def _uploads_ahead(to: _Ahead, store: Store, observer: Observer) -> Iterator[BlobUploads | None]:
    """Uploads that end with the build; None without --ahead.

    :raises ConfigError: the target is not a repository.
    :raises RegistryError: the registry does not answer; this is checked before the build.
    """
    if to.ahead is None:
        yield None
        return
    from torchkiln.registry.push import BlobUploads, History, PushOptions
    from torchkiln.registry.reference import parse_repository
    from torchkiln.registry.session import open_registry

    repository = parse_repository(to.ahead)
    with open_registry(repository, os.environ, plain_http=to.plain_http) as registry:
        registry.check()
        options = PushOptions(observer=observer, history=History(store))
        with BlobUploads(registry, repository, options) as uploads:
            yield uploads
