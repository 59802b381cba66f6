"""Loads locks for builds from the folder of locks, and finds stale ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torchkiln.base import artefact, tools
from torchkiln.errors import Unresolvable
from torchkiln.index.settings import PYTORCH_VARIABLE
from torchkiln.lock.freshness import require_fresh, staleness
from torchkiln.lock.lock import how_to_lock, load_locked
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.resolve import require_buildable, resolve
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Cell, Resolution, Source
from torchkiln.model.lock import LockedCell
from torchkiln.model.operating_system import DEFAULT_OS


@dataclass(frozen=True, slots=True)
class Checked:
    """The number of fresh locks, and a line for each reason why another is stale."""

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
        """The present resolution of *cell* without its components."""
        return self.resolution(replace(cell, components=()))

    def fresh(self, cell: Cell, environ: Mapping[str, str]) -> LockedCell:
        """The lock of *cell*, made from the present matrix and facts.

        :raises Unresolvable: the cell is unavailable, or *environ* does not set the index that it needs.
        :raises Stale: the lock is missing, invalid, or made from another matrix or other facts.
        """
        resolution = self.resolution(cell)
        source = require_buildable(resolution).source
        tag = tag_of(resolution)
        if source is Source.PYTORCH and not environ.get(PYTORCH_VARIABLE):
            then = "" if (self.path / tag / "lock.json").exists() else f", then: {how_to_lock(cell)}"
            raise Unresolvable(
                f"{tag}: its torch is only on PyTorch's own index, which is not configured",
                hint=f"set {PYTORCH_VARIABLE} to the index's address{then}",
            )
        locked = load_locked(self.path, tag, how=how_to_lock(cell))
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
            committed = resolution.lockable and cell.os == DEFAULT_OS and not cell.components
            if tag is None or (sweeping and not committed and not (self.path / tag).is_dir()):
                continue
            reasons = self._staleness(resolution)
            stale += [f"{tag}: {reason}" for reason in reasons]
            fresh += not reasons
        return Checked(fresh, tuple(stale))

    def _staleness(self, resolution: Resolution) -> tuple[str, ...]:
        cell = resolution.cell
        return staleness(
            self.path,
            resolution,
            self.bound,
            artefact.read_lock(self.path, cell.os),
            tools.read_lock(self.path, cell.os, resolution.tools) if resolution.tools else None,
            self.below(cell) if resolution.components else None,
        )
