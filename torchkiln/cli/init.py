"""`torchkiln init`: writes a matrix.yaml with one cell into the current folder."""

from __future__ import annotations

import os
from pathlib import Path

import click

from torchkiln.cli.shared.completing import KNOWN_CUDA, KNOWN_TORCH
from torchkiln.cli.shared.options import nearest_matrix
from torchkiln.cli.shared.selection import CellOptions
from torchkiln.cli.shared.terminal import as_typed
from torchkiln.errors import ConfigError
from torchkiln.matrix import facts
from torchkiln.matrix.first_matrix import SCHEMA, first_cell, matrix_text
from torchkiln.matrix.matrix import load
from torchkiln.model.project import APP
from torchkiln.projects.devcontainer import PLACES, DevContainer, demand_image_name, devcontainer_json
from torchkiln.projects.file import load_project
from torchkiln.util.files import write_atomic
from torchkiln.util.schema import shipped_text

_MATRIX = Path("matrix.yaml")


@click.command("init")
@click.option("--torch", metavar="X", shell_complete=KNOWN_TORCH, help="torch release  [default: the newest]")
@click.option(
    "--cuda",
    metavar="X",
    shell_complete=KNOWN_CUDA,
    help="CUDA version  [default: that of torch's wheel]",
)
@click.option(
    "--devcontainer",
    is_flag=True,
    help="write .devcontainer/devcontainer.json instead, to open this folder in a container",
)
@click.option(
    "--image",
    metavar="NAME",
    help="with --devcontainer: the image in an engine or a registry  [default: that of the project in this"
    " folder, else of the cell]",
)
def init(torch: str | None, cuda: str | None, devcontainer: bool, image: str | None) -> None:
    """Start a project in the current folder: write matrix.yaml with one image, and its schema for editors.

    With --devcontainer write a dev container for VS Code and other tools. Existing files are never changed.
    """
    if image is not None and not devcontainer:
        raise click.UsageError("--image requires --devcontainer")
    if image is not None and (torch or cuda):
        raise click.UsageError("--image cannot be used with --torch or --cuda")
    if devcontainer:
        path, command = _write_devcontainer(image, torch, cuda)
        click.echo(path)
        first = f"`{command}`; then " if command else ""
        click.echo(
            as_typed(f"next: {first}open the folder in VS Code, or `devcontainer up --workspace-folder .`"),
            err=True,
        )
        return
    if os.path.lexists(_MATRIX):
        raise ConfigError(f"{_MATRIX}: file exists", hint="edit it, or run this in another folder")
    known = facts.load()
    text = matrix_text(first_cell(known, torch, cuda))
    load(text, known)
    write_atomic(Path(SCHEMA), shipped_text("matrix"))
    write_atomic(_MATRIX, text.encode())
    click.echo(_MATRIX)
    click.echo(as_typed("next: `torchkiln lock`; then `torchkiln build`"), err=True)


def _write_devcontainer(image: str | None, torch: str | None, cuda: str | None) -> tuple[Path, str]:
    """Write the file; returns its path, and the command that loads the image into an engine, if any.

    :param image: the image's name in an engine or a registry. None: the image of the folder's project; if
        there is none, the image of the cell with *torch* and *cuda*.
    :raises ConfigError: the folder has such a file, or the options select several cells.
    :raises NothingSelected: the folder has no project's lock, and no cell is named.
    """
    if present := next((place for place in PLACES if os.path.lexists(place)), None):
        raise ConfigError(f"{present}: file exists", hint="edit it, or delete it first")
    container, command = _container(image, torch, cuda)
    path = Path(PLACES[0])
    write_atomic(path, devcontainer_json(container))
    return path, command


def _container(image: str | None, torch: str | None, cuda: str | None) -> tuple[DevContainer, str]:
    here = Path()
    lock = load_project(here) if not (torch or cuda) else None
    folder = f"/{APP}" if lock else "/workspace"
    name = lock.name if lock else here.resolve().name
    if image is not None:
        return DevContainer(name=name, image=demand_image_name(image), folder=folder), ""
    torches, cudas = ((value,) if value else () for value in (torch, cuda))
    chosen = CellOptions(matrix_file=nearest_matrix(), torch=torches, cuda=cudas)
    repository = chosen.grid()[0].repository
    if lock:
        command = f"torchkiln project build {here}`, then `torchkiln run {lock.name} --runtime docker -- true"
        return DevContainer(name=name, image=f"{repository}:{lock.name}", folder=folder), command
    tag = chosen.tag("init --devcontainer")
    return (
        DevContainer(name=name, image=f"{repository}:{tag}", folder=folder),
        f"torchkiln build {tag} --load",
    )
