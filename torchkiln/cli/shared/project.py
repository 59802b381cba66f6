"""Finds the lock of a project, and the cell whose image it goes on."""

from __future__ import annotations

import os
from pathlib import Path

from torchkiln.cli.shared.selection import CellOptions
from torchkiln.errors import ConfigError, NothingSelected, Stale
from torchkiln.locks.folder import LockFolder
from torchkiln.matrix.tags import cell_named, tag_of
from torchkiln.model.cell import Cell
from torchkiln.model.project import ProjectLock
from torchkiln.projects.file import FILE, load_project
from torchkiln.util.places import INSTALLED, MATRIX


def project_cell(chosen: CellOptions, folder: Path, images: Path) -> tuple[Cell, LockFolder]:
    """The cell for the project in *folder*, and the folder of locks.

    Without a selection it is the cell of the project's lock.

    :raises ConfigError: the options select several cells.
    :raises NothingSelected: they select none, and the project has no lock.
    :raises Stale: the project's lock is invalid, and no cell is selected.
    """
    _demand_folder(folder)
    matrix, facts = chosen.grid()
    locks = LockFolder(images, matrix, facts)
    if not chosen.any and (lock := load_project(folder)) is not None:
        cell = _cell_of(lock.parent, folder, locks)
        _lock_cell(cell, locks, chosen.matrix_file)
        return cell, locks
    if not chosen.any and len(matrix.pairs) > 1:
        raise NothingSelected(
            f"{folder}: no image is selected, and the project has no lock",
            hint="select its image: --torch X --cuda Y; `torchkiln list` shows the cells",
        )
    cells, _, _ = chosen.cells(must_name=True)
    if len(cells) != 1:
        raise ConfigError(
            f"a project takes the image of one cell, but the options select {len(cells)}",
            hint="name one --torch and one --cuda",
        )
    _lock_cell(cells[0], locks, chosen.matrix_file)
    return cells[0], locks


def _lock_cell(cell: Cell, locks: LockFolder, matrix_file: Path) -> None:
    """Lock *cell* of an installation's matrix if it is not locked yet: an installation has no locks."""
    from torchkiln.cli.shared.console import open_cache
    from torchkiln.cli.shared.lock_output import LockOutput, say
    from torchkiln.engine.standalone import StandalonePythons
    from torchkiln.locks.session import LockRequest, LockSession

    resolution, environ = locks.resolution(cell), os.environ
    if INSTALLED and matrix_file == MATRIX and resolution.build and not locks.has(resolution):
        say(f"{tag_of(resolution)} is not locked yet: locks it in {locks.path}")
        store, observer = open_cache(), LockOutput()
        pythons = StandalonePythons(store=store, environ=environ, locate=locks.matrix.locate)
        run = LockSession(locks, LockRequest(), store, environ=environ, observer=observer, pythons=pythons)
        run.lock(cell)


def _cell_of(tag: str, folder: Path, locks: LockFolder) -> Cell:
    try:
        return cell_named(tag, locks.matrix, locks.facts)
    except ConfigError as error:
        raise Stale(
            f"{folder}: its lock is for {tag}, which the matrix does not have",
            hint=f"choose another image: torchkiln project lock {folder} --torch X --cuda Y",
        ) from error


def demand_lock(folder: Path) -> ProjectLock:
    """The lock of the project in *folder*.

    :raises ConfigError: there is no such directory.
    :raises Stale: there is no lock, or it is invalid.
    """
    _demand_folder(folder)
    if (lock := load_project(folder)) is None:
        raise Stale(
            f"{folder / FILE}: no such file: the project is not locked yet",
            hint=f"run: torchkiln project lock {folder} --torch X --cuda Y",
        )
    return lock


def _demand_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such directory", hint="name the folder of the project")
