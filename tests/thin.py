"""Thin cells and their locks for tests, made from a lock of the repository."""

from __future__ import annotations

from dataclasses import replace

from tests.planned import FACTS, MATRIX
from tests.reports import LOCKED, TAG
from torchkiln.locks.folder import lock_thin
from torchkiln.locks.lock import inputs_digest
from torchkiln.matrix.resolve import resolve
from torchkiln.model.cell import Cell, Resolution
from torchkiln.model.device_code import Gpus
from torchkiln.model.lock import LockedCell

FULL = TAG  # the tag of the full image; thin images have the same wheels


def thin_cell(gpus: Gpus = ("9.0",), *, own_use: bool = False, cell: Cell | None = None) -> Cell:
    """*cell*, by default that of FULL, as a thin cell for *gpus*."""
    return replace(cell or LOCKED.resolution.cell, gpus=gpus, own_use=own_use)


def thin_resolution(gpus: Gpus = ("9.0",), *, own_use: bool = False, cell: Cell | None = None) -> Resolution:
    """The resolution of `thin_cell`."""
    return resolve(thin_cell(gpus, own_use=own_use, cell=cell), MATRIX, FACTS)


def thin_locked(gpus: Gpus = ("9.0",), *, own_use: bool = False, full: LockedCell = LOCKED) -> LockedCell:
    """The lock of `thin_cell` for *full*, made from the lock *full* as if it were up to date."""
    below = resolve(full.resolution.cell, MATRIX, FACTS)
    fresh = replace(full, resolution=below, inputs=inputs_digest(below, ()))
    found = thin_resolution(gpus, own_use=own_use, cell=full.resolution.cell)
    return lock_thin(found, fresh, below=below)
