"""Defines --project and the options that go with it, and finds the cell whose image a project goes on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from torchkiln.cli.shared.options import FOLDER, options
from torchkiln.cli.shared.selection import CellOptions
from torchkiln.errors import ConfigError, NothingSelected, Stale
from torchkiln.locks.folder import LockFolder
from torchkiln.matrix.named import cell_named
from torchkiln.model.cell import Cell
from torchkiln.projects.choice import Choice, choice_of
from torchkiln.projects.file import load_project


@dataclass(frozen=True, slots=True)
class ProjectOptions:
    """The values of --project, --extra and --group."""

    folder: Path
    choice: Choice | None  # the extras and groups; None: neither option was used


_OPTIONS = options(
    click.option(
        "--project",
        type=FOLDER,
        metavar="DIR",
        help="the project in this folder, on the image of the selected cell",
    ),
    click.option(
        "--extra",
        "extras",
        multiple=True,
        metavar="NAME",
        help="with --project: also the packages of this extra  [default: those of the project's lock]",
    ),
    click.option(
        "--group",
        "groups",
        multiple=True,
        metavar="NAME",
        help="with --project: also the packages of this dependency group"
        "  [default: those of the project's lock]",
    ),
)


def project_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; *command* receives them together, as `project`, which is None without --project."""

    @functools.wraps(command)
    def with_project(
        *arguments: Any,
        project: Path | None,
        extras: tuple[str, ...],
        groups: tuple[str, ...],
        **values: Any,
    ) -> Any:
        if project is None:
            if extras or groups:
                raise click.UsageError(f"--{'extra' if extras else 'group'} requires --project")
            return command(*arguments, project=None, **values)
        choice = choice_of(extras, groups) if extras or groups else None
        return command(*arguments, project=ProjectOptions(project, choice), **values)

    decorated: Callable[..., Any] = _OPTIONS(with_project)
    return decorated


def project_cell(chosen: CellOptions, folder: Path, images: Path) -> tuple[Cell, LockFolder]:
    """The cell for the project in *folder*, and the folder of locks.

    Without a selection it is the cell of the project's lock.

    :raises ConfigError: the options select several cells.
    :raises NothingSelected: they select none, and the project has no lock.
    :raises Stale: the project's lock is invalid, and no cell is selected.
    """
    if not folder.is_dir():
        raise ConfigError(f"--project {folder}: no such directory")
    matrix, facts = chosen.grid()
    locks = LockFolder(images, matrix, facts)
    if not chosen.any and (lock := load_project(folder)) is not None:
        return _cell_of(lock.parent, folder, locks), locks
    if not chosen.any and len(matrix.pairs) > 1:
        raise NothingSelected(
            f"--project {folder}: no image is selected, and the project has no lock",
            hint="select its image: --torch X --cuda Y; `torchkiln list` shows the cells",
        )
    cells, _, _ = chosen.cells(must_name=True)
    if len(cells) != 1:
        raise ConfigError(
            f"--project takes the image of one cell, but the options select {len(cells)}",
            hint="name one --torch and one --cuda",
        )
    return cells[0], locks


def _cell_of(tag: str, folder: Path, locks: LockFolder) -> Cell:
    try:
        return cell_named(tag, locks.matrix, locks.facts)
    except ConfigError as error:
        raise Stale(
            f"{folder}: its lock is for {tag}, which the matrix does not have",
            hint=f"choose another image: torchkiln lock --project {folder} --torch X --cuda Y",
        ) from error
