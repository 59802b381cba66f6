"""Loads locks for builds from the folder of locks, and finds stale ones.

The lock of a thin cell is that of the same cell for all GPUs, with the device code that the image keeps. The
wheels are the same, so no index is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torchkiln.base import artefact, tools
from torchkiln.errors import Unresolvable
from torchkiln.index.settings import PYTORCH_ADDRESS, PYTORCH_VARIABLE
from torchkiln.locks.freshness import require_fresh, staleness
from torchkiln.locks.lock import how_to_lock, inputs_digest, load_locked, save
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.resolve import require_buildable, resolve
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Cell, Resolution, Source
from torchkiln.model.device_code import DeviceCode, cut_wheels
from torchkiln.model.lock import LockedCell
from torchkiln.model.operating_system import DEFAULT_OS
from torchkiln.model.recipe import DEVICE_CODE_RULE


@dataclass(frozen=True, slots=True)
class Checked:
    """The number of fresh locks, and a line for each reason why a lock is stale."""

    fresh: int
    stale: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LockFolder:
    """The folder of locks, and the matrix and facts from which they are made."""

    path: Path
    matrix: Matrix
    facts: Facts

    @property
    def bound(self) -> tuple[str, ...]:
        """The packages that the matrix binds to PyTorch's own index."""
        bound = (index.packages for index in self.matrix.indexes if index.name == Source.PYTORCH.value)
        return next(bound, ())

    def resolution(self, cell: Cell) -> Resolution:
        """The present resolution of *cell*."""
        return resolve(cell, self.matrix, self.facts)

    def below(self, cell: Cell) -> Resolution:
        """The present resolution of *cell* for all GPUs. The lock of a thin cell is made from its lock."""
        return self.resolution(replace(cell, gpus=(), own_use=False))

    def thin(self, resolution: Resolution, previous: LockedCell | None = None) -> LockedCell:
        """The lock of a thin cell, made from that of the same cell for all GPUs; nothing is written.

        :raises Stale: the lock for all GPUs is missing, invalid, or made from another matrix or other facts.
        """
        below = self.below(resolution.cell)
        full = load_locked(self.path, tag_of(below), how=how_to_lock(below.cell))
        return lock_thin(resolution, full, below=below, bound=self.bound, previous=previous)

    def load(self, cell: Cell) -> LockedCell:
        """The lock of *cell*; that of a thin cell is made if it is missing, and not written.

        :raises Unresolvable: the cell is unavailable.
        :raises Stale: the lock is missing or invalid.
        """
        resolution = self.resolution(cell)
        require_buildable(resolution)
        if cell.gpus and not self.has(resolution):
            return self.thin(resolution)
        return load_locked(self.path, tag_of(resolution), how=how_to_lock(cell))

    def keep(self, locked: LockedCell) -> bool:
        """Write *locked* if the folder has no lock of its cell; returns whether it was written."""
        if self.has(locked.resolution):
            return False
        save(self.path, locked)
        return True

    def has(self, resolution: Resolution) -> bool:
        """Whether the folder has a lock of the cell."""
        return (self.path / tag_of(resolution) / "lock.json").exists()

    def fresh(self, cell: Cell, environ: Mapping[str, str]) -> LockedCell:
        """The lock of *cell*, made from the present matrix and facts.

        :raises Unresolvable: the cell is unavailable, or *environ* does not set the index that it needs.
        :raises Stale: the lock is missing, invalid, or made from another matrix or other facts; a missing
            lock of a thin cell is made, see `load`.
        """
        resolution = self.resolution(cell)
        source = require_buildable(resolution).source
        tag = tag_of(resolution)
        if source is Source.PYTORCH and not environ.get(PYTORCH_VARIABLE):
            then = "" if self.has(resolution) else f", then: {how_to_lock(cell)}"
            raise Unresolvable(
                f"{tag}: its torch is only on PyTorch's own index, which is not configured",
                hint=f"set {PYTORCH_VARIABLE} to {PYTORCH_ADDRESS} or a mirror of it{then}",
            )
        locked = self.load(cell)
        require_fresh(locked, resolution, self.bound)
        return locked

    def check(self, cells: Iterable[Cell], *, sweeping: bool) -> Checked:
        """Check the locks of *cells*.

        :param sweeping: ignore missing locks that need not be committed.
        """
        fresh, stale = 0, []
        for cell in cells:
            resolution = self.resolution(cell)
            tag = tag_of(resolution) if resolution.build else None
            # Only locks of wheels on the default index must be committed; others are checked if they exist.
            committed = resolution.lockable and cell.os == DEFAULT_OS and not cell.gpus
            if tag is None or (sweeping and not committed and not (self.path / tag).is_dir()):
                continue
            reasons = self._staleness(resolution)
            stale += [f"{tag}: {reason}" for reason in reasons]
            fresh += not reasons
        return Checked(fresh, tuple(stale))

    def _staleness(self, resolution: Resolution) -> tuple[str, ...]:
        cell = resolution.cell
        base = cell.system
        return staleness(
            self.path,
            resolution,
            self.bound,
            artefact.read_lock(self.path, base),
            tools.read_lock(self.path, base, resolution.tools) if resolution.tools else None,
            self.below(cell) if cell.gpus else None,
        )


def lock_thin(
    resolution: Resolution,
    full: LockedCell,
    *,
    below: Resolution,
    bound: tuple[str, ...] = (),
    previous: LockedCell | None = None,
) -> LockedCell:
    """*full*, changed to keep device code only for the GPUs of *resolution*.

    :param below: the present resolution of the same cell for all GPUs.
    :param previous: the present lock; its recorded layers are kept if its files are the same.
    :raises Stale: *full* was made from another matrix or other facts.
    """
    require_fresh(full, below, bound, role=", which has the wheels of the thin image,", run="first run")
    cell = resolution.cell
    wheels = cut_wheels((wheel.name for wheel in full.wheels), own_use=cell.own_use)
    locked = replace(
        full,
        resolution=resolution,
        inputs=inputs_digest(resolution, bound),
        device_code=DeviceCode(rule=DEVICE_CODE_RULE, gpus=cell.gpus, wheels=wheels, own_use=cell.own_use),
    )
    return previous if previous and replace(previous, layers=locked.layers) == locked else locked
