"""`torchkiln init`: writes a matrix.yaml with one cell into the current folder."""

from __future__ import annotations

import os
from pathlib import Path

import click

from torchkiln.cli.shared.completing import KNOWN_CUDA, KNOWN_TORCH
from torchkiln.cli.shared.program import as_typed
from torchkiln.errors import ConfigError
from torchkiln.matrix import facts
from torchkiln.matrix.first_matrix import SCHEMA, first_cell, matrix_text
from torchkiln.matrix.matrix import load
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
        from torchkiln.cli.shared.devcontainer import write_devcontainer

        path, command = write_devcontainer(image, torch, cuda)
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
