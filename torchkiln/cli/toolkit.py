"""`torchkiln toolkit`: of what a devel image's CUDA toolkit is made, what of it is shipped, and its files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from torchkiln.build.cuda_layers import lay_out
from torchkiln.build.records import cached_record
from torchkiln.cli.shared import console
from torchkiln.cli.shared.options import images_folder
from torchkiln.cli.shared.selection import Chosen, selection
from torchkiln.errors import ConfigError
from torchkiln.index.archives import CudaArchives
from torchkiln.model.plan import ImagePlan, ToolkitLayer
from torchkiln.plan.cuda_toolkit import libraries_of
from torchkiln.plan.load import plan_cell
from torchkiln.store.root import cache_root
from torchkiln.store.store import Store


@click.command("toolkit")
@selection
@images_folder
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="lay its files out in this new folder: the build context `toolkit` of the Dockerfile",
)
@click.option("--json", "as_json", is_flag=True, help="the same as one object on stdout")
@click.option("--quiet", "-q", is_flag=True, help="no progress")
def toolkit(chosen: Chosen, images: Path, folder: Path | None, as_json: bool, quiet: bool) -> None:
    """Show of which archives of NVIDIA's the toolkit of a devel image is made, and what of them is shipped.

    What the layers weigh is known once they were made here: by a build, or by --to. Libraries are those of
    torch's wheels, to which it links.
    """
    cells, grid, known = chosen.cells(must_name=True)
    if len(cells) != 1:
        raise ConfigError("toolkit takes one image", hint="name one --torch and one --cuda")
    plan = plan_cell(cells[0], grid, known, images=images)
    if not plan.locked.archives:
        raise ConfigError(
            f"{plan.tag} has no archives of NVIDIA's toolkit",
            hint="name a cell with --flavor devel and CUDA 12.1, 11.8 or 11.7",
        )
    store = Store(cache_root(), on_wait=console.waiting)
    if folder is not None:
        _lay_out(plan, store, folder, quiet=quiet)
    told = _told(plan, store)
    if as_json:
        click.echo(json.dumps(told, indent=2))
    else:
        for line in _lines(told):
            click.echo(line)


def _lay_out(plan: ImagePlan, store: Store, folder: Path, *, quiet: bool) -> None:
    if folder.exists():
        raise ConfigError(f"--to {folder}: is there already", hint="name a folder that is not")
    with console.progress(quiet=quiet) as observer:
        lay_out(plan, store, folder.absolute(), archives=CudaArchives(os.environ), observer=observer)


def _told(plan: ImagePlan, store: Store) -> dict[str, Any]:
    locked = plan.locked
    layers = [(spec, cached_record(spec, store)) for spec in plan.of(ToolkitLayer)]
    weighs = [made.blob.size for _, made in layers if made]
    return {
        "tag": plan.tag,
        "release": locked.resolution.toolkit.release if locked.resolution.toolkit else "",
        "archives": [
            {"component": one.component, "version": one.version, "bytes": one.size, "sha256": one.sha256}
            for one in locked.archives
        ],
        "archive_bytes": sum(one.size for one in locked.archives),
        "layers": [
            {
                "what": spec.title,
                "bytes": made.blob.size if made else None,
                "unpacked": made.blob.unpacked if made else None,
            }
            for spec, made in layers
        ],
        "layer_bytes": sum(weighs) if len(weighs) == len(layers) else None,
        "links": list(libraries_of(locked)),
    }


def _lines(told: dict[str, Any]) -> list[str]:
    size = console.size
    lines = [f"{told['tag']}: CUDA {told['release']}"]
    lines += [f"  {size(one['bytes']):>9}  {one['component']} {one['version']}" for one in told["archives"]]
    lines.append(
        f"  {size(told['archive_bytes']):>9}  in {len(told['archives'])} archives, of which the image takes"
    )
    lines += [
        f"  {size(one['bytes']) if one['bytes'] is not None else 'not made':>9}  {one['what']}"
        for one in told["layers"]
    ]
    if told["layer_bytes"] is not None:
        less = told["archive_bytes"] - told["layer_bytes"]
        lines.append(f"  {size(told['layer_bytes']):>9}  in layers: {size(less)} less than the archives")
    lines.append(f"  {len(told['links'])} libraries are links to torch's wheels:")
    return lines + [f"    {one}" for one in told["links"]]
