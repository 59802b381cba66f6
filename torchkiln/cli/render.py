"""`torchkiln render`: write the Dockerfiles, the files beside them and the bake file, or check them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import click

from torchkiln.base.recipe import recipe
from torchkiln.cli.shared.options import FOLDER, images_folder
from torchkiln.cli.shared.selection import CellOptions, own_cell_selection
from torchkiln.cli.shared.terminal import echo
from torchkiln.docker.dockerfile import BAKE_FILE, bake, load_templates, render_folder
from torchkiln.errors import ConfigError, NothingSelected, Stale
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import all_cells
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Cell
from torchkiln.plan.load import plan_cell
from torchkiln.plan.plan import GENERATED
from torchkiln.util.files import delete, write_atomic
from torchkiln.util.places import TEMPLATES
from torchkiln.util.strict_json import holds


@click.command("render")
@own_cell_selection
@images_folder
@click.option("--check", is_flag=True, help="write nothing; exit with 5 if a file is stale")
@click.option(
    "--rootfs",
    type=FOLDER,
    help="also write the files of rootfs/ into this new folder, for `docker buildx build --build-context`",
)
def render(chosen: CellOptions, images: Path, check: bool, rootfs: Path | None) -> None:
    """Write images/<tag>/{Dockerfile,image.json} from the locks; print the tags.

    The default is every cell that has a lock; then images/docker-bake.json, which lists them, is written too.
    Thin images, and those with a standalone Python or for another platform, have no Dockerfile.
    """
    if check and rootfs:
        raise click.UsageError("--check cannot be used with --rootfs")
    if rootfs and rootfs.exists() and any(rootfs.iterdir()):
        raise ConfigError(f"--rootfs {rootfs}: directory not empty", hint="name a new folder")
    grid, known = chosen.grid()
    cells = chosen.cells()[0] if chosen.any else all_cells(grid)
    sweeping = chosen.every or not chosen.any
    if sweeping:
        cells = _with_dockerfile(cells, grid, known, images)
    if not cells:
        raise NothingSelected(f"no cell has a lock in {images}", hint="run: torchkiln lock --all")
    templates = load_templates(TEMPLATES, grid.folder)
    stale: list[str] = []
    plans = [plan_cell(cell, grid, known, images=images) for cell in cells]
    for cell, plan in zip(cells, plans, strict=True):
        files = render_folder(plan, templates, recipe(cell.os).packages)
        folder = images / plan.tag
        if check:
            stale += _faults(folder, files)
        else:
            _write(folder, files)
            echo(plan.tag)
    if sweeping:
        whole = {BAKE_FILE: bake(plans, grid.repository)}
        if check:
            stale += _faults(images, whole)
        else:
            _write(images, whole)
    if rootfs:  # these files are the same for all images
        for file in plans[0].overlay.files:
            if file.path not in GENERATED:
                write_atomic(rootfs / file.path, file.data, mode=file.mode)
    if stale:
        raise Stale("\n".join(stale), hint="run: torchkiln render")


def write_rendered(cells: Iterable[Cell], grid: Matrix, known: Facts, images: Path) -> None:
    """Write the files of *cells*, and the bake file, which lists all cells that have a lock."""
    templates = load_templates(TEMPLATES, grid.folder)
    for cell in _with_dockerfile(cells, grid, known, images):
        plan = plan_cell(cell, grid, known, images=images)
        _write(images / plan.tag, render_folder(plan, templates, recipe(cell.os).packages))
    every = _with_dockerfile(all_cells(grid), grid, known, images)
    plans = [plan_cell(cell, grid, known, images=images) for cell in every]
    _write(images, {BAKE_FILE: bake(plans, grid.repository)})


def _with_dockerfile(cells: Iterable[Cell], grid: Matrix, known: Facts, images: Path) -> tuple[Cell, ...]:
    """Those of *cells* that have a lock in *images* and a Dockerfile."""
    return tuple(
        found.cell
        for found in (resolve(cell, grid, known) for cell in cells)
        if found.build
        and not (found.cell.gpus or found.cell.system != found.cell.os)
        and (images / tag_of(found) / "lock.json").is_file()
    )


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        write_atomic(folder / name, data)
    for path in _strays(folder):
        delete(path)
    with suppress(OSError):
        (folder / "requirements").rmdir()  # the folder does not exist, or has other files


def _faults(folder: Path, files: dict[str, bytes]) -> list[str]:
    """A line for each file of *folder* that is missing, differs from *files*, or is no longer generated."""
    faults = []
    for name, data in files.items():
        path = folder / name
        if not path.is_file():
            faults.append(f"{path}: missing")
        elif not holds(path, data):
            faults.append(f"{path}: not up to date")
    return faults + [f"{path}: no longer generated" for path in _strays(folder)]


def _strays(folder: Path) -> list[Path]:
    """Files that earlier versions generated: constraints.txt, and a requirements file for each layer."""
    found = (folder / "constraints.txt", *(folder / "requirements").glob("*.txt"))
    return sorted(path for path in found if path.is_file())
