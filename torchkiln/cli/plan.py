"""`torchkiln plan`: shows the layers of an image before it is built; a group with `toolkit`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from torchkiln.cli.shared import console, terminal
from torchkiln.cli.shared.context import BuildContext
from torchkiln.cli.shared.groups import default_group
from torchkiln.cli.shared.machines import Machines, cache_options, jobs_for
from torchkiln.cli.shared.options import FOLDER, images_folder, json_option, quiet_option
from torchkiln.cli.shared.selection import CellOptions, cell_selection
from torchkiln.cli.shared.tables import beside
from torchkiln.engine.cache_keys import cached_record
from torchkiln.engine.cuda_layers import lay_out
from torchkiln.errors import ConfigError
from torchkiln.index.archives import CudaArchives
from torchkiln.model.cell import Cell
from torchkiln.model.plan import ImagePlan, ToolkitLayer
from torchkiln.plan.cuda_toolkit import libraries_of
from torchkiln.plan.load import plan_cell
from torchkiln.plan.plan import to_json
from torchkiln.store.store import Store


@click.command("toolkit")
@cell_selection
@images_folder
@click.option(
    "--to",
    "folder",
    type=FOLDER,
    help="write the toolkit's files into this new folder, the build context `toolkit` of the Dockerfile",
)
@json_option
@quiet_option
def toolkit(chosen: CellOptions, images: Path, folder: Path | None, as_json: bool, quiet: bool) -> None:
    """Show the NVIDIA archives of the CUDA toolkit in a devel image, and the layers made from them.

    The sizes of the layers are known after a build on this machine, or after --to. The libraries of the
    toolkit are links to the libraries in torch's wheels.
    """
    cells, grid, known = chosen.cells(must_name=True)
    if len(cells) != 1:
        raise ConfigError(
            f"toolkit takes one image, but the options select {len(cells)}",
            hint="name one --torch and one --cuda",
        )
    plan = plan_cell(cells[0], grid, known, images=images)
    if not plan.locked.archives:
        raise ConfigError(
            f"{plan.tag} has no CUDA toolkit from NVIDIA's archives",
            hint="name a cell with --flavor devel and CUDA 12.1, 11.8 or 11.7",
        )
    store = console.open_cache()
    if folder is not None:
        _lay_out(plan, store, folder, quiet=quiet)
    found = _json(plan, store)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        for line in _lines(found):
            terminal.echo(line)


def _lay_out(plan: ImagePlan, store: Store, folder: Path, *, quiet: bool) -> None:
    if folder.exists():
        raise ConfigError(f"--to {folder}: the folder exists already", hint="name a new folder")
    with console.progress(quiet=quiet) as observer:
        lay_out(plan, store, folder.absolute(), archives=CudaArchives(os.environ), observer=observer)


def _json(plan: ImagePlan, store: Store) -> dict[str, Any]:
    locked = plan.locked
    layers = [(spec, cached_record(spec, store)) for spec in plan.of(ToolkitLayer)]
    sizes = [made.blob.size for _, made in layers if made]
    return {
        "tag": plan.tag,
        "release": locked.resolution.toolkit.release if locked.resolution.toolkit else "",
        "archives": [
            {
                "component": archive.component,
                "version": archive.version,
                "bytes": archive.size,
                "sha256": archive.sha256,
            }
            for archive in locked.archives
        ],
        "archive_bytes": sum(archive.size for archive in locked.archives),
        "layers": [
            {
                "what": spec.title,
                "bytes": made.blob.size if made else None,
                "unpacked": made.blob.unpacked if made else None,
            }
            for spec, made in layers
        ],
        "layer_bytes": sum(sizes) if len(sizes) == len(layers) else None,
        "links": list(libraries_of(locked)),
    }


def _lines(found: dict[str, Any]) -> list[str]:
    size, archives = console.size, found["archives"]
    lines = [f"{found['tag']}: CUDA {found['release']}"]
    lines += [f"  {size(each['bytes']):>9}  {each['component']} {each['version']}" for each in archives]
    lines.append(
        f"  {size(found['archive_bytes']):>9}  in {len(archives)} archives, which give these layers:"
    )
    lines += [
        f"  {size(layer['bytes']) if layer['bytes'] is not None else 'not built':>9}  {layer['what']}"
        for layer in found["layers"]
    ]
    if found["layer_bytes"] is not None:
        saved = found["archive_bytes"] - found["layer_bytes"]
        lines.append(f"  {size(found['layer_bytes']):>9}  in layers: {size(saved)} less than the archives")
    lines.append(f"  {len(found['links'])} libraries are links to torch's wheels:")
    return lines + [f"    {link}" for link in found["links"]]


@click.group("plan", cls=default_group("show"))
def plan() -> None:
    """Show the layers of images before they are built. `plan` means `plan show`."""


@plan.command("show")
@cell_selection
@images_folder
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="print the whole plan as JSON, one line for each of several images",
)
@click.option(
    "--as",
    "form",
    type=click.Choice(("make", "json", "slurm", "github", "k8s")),
    help="print jobs instead, one for each layer and image, as a file for this program",
)
@cache_options
@click.pass_context
def show(
    ctx: click.Context, chosen: CellOptions, images: Path, as_json: bool, form: str | None, machines: Machines
) -> None:
    """Show the layers of the selected images before they are built, with their sizes.

    With --as, a layer of several images is one job. Jobs may run again, and on any machine with the locks.
    --cache-from and --cache-to become options of all jobs: see docs/ci.md.
    """
    cells, grid, known = chosen.cells(must_name=True)
    if form:
        context = BuildContext(grid, known, images, True, False)
        terminal.echo(_as_jobs(ctx, context, cells, form, machines), nl=False)
        return
    if machines != Machines():
        raise click.UsageError("--cache-from and --cache-to require --as")
    plans = [plan_cell(cell, grid, known, images=images) for cell in cells]
    for image_plan in plans:
        if not as_json:
            terminal.echo(table(image_plan, terminal.columns(err=False)))
        else:
            click.echo(json.dumps(to_json(image_plan), indent=2 if len(plans) == 1 else None))


def _as_jobs(
    ctx: click.Context, context: BuildContext, cells: Sequence[Cell], form: str, machines: Machines
) -> str:
    """The jobs of *cells*; of several cells, those that cannot be built are left out, with a warning."""
    from torchkiln.jobs.formats import FORMATS

    if form in ("github", "k8s") and not any(where.startswith("oci://") for where in machines.cache_to):
        raise ConfigError(
            f"--as {form}: the jobs share no cache",
            hint="name a registry: --cache-from oci://HOST/REPOSITORY --cache-to oci://HOST/REPOSITORY",
        )
    jobs, failures = jobs_for(ctx, context, cells, machines, digests=False)
    if failures:
        console.say(
            f"warning: {len(failures)} of {len(cells)} cells are left out: not locked, or unavailable"
        )
    return FORMATS[form](jobs)


def table(image_plan: ImagePlan, width: int | None = None) -> str:
    """The names of the image, a line for each layer (number, size of its input, content), and the total."""
    sizes = [layer.size for layer in image_plan.layers]
    rows = [
        beside(f"{number:3}  {_megabytes(layer.size):>9} MB  ", layer.title, width)
        for number, layer in enumerate(image_plan.layers, start=1)
    ]
    names = beside("", ", ".join((image_plan.tag, *image_plan.aliases)), width)
    known = sum(size for size in sizes if size is not None)
    more = f", {sizes.count(None)} of unknown size" if None in sizes else ""
    return "\n".join((names, *rows, f"     {known / 1e6:9,.1f} MB  in {len(sizes)} layers{more}"))


def _megabytes(size: int | None) -> str:
    return "?" if size is None else f"{size / 1e6:,.1f}"


plan.add_command(toolkit)
