"""The folder of locks: what a build takes from it, and which of its locks are stale."""

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
    """How many locks are fresh; why the others are not, a line each."""

    fresh: int
    stale: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LockFolder:
    """The folder of locks, with the matrix and the facts that they are made from."""

    path: Path
    matrix: Matrix
    facts: Facts

    @property
    def bound(self) -> tuple[str, ...]:
        """The packages that the matrix binds to PyTorch's own index."""
        bound = (index.packages for index in self.matrix.indexes if index.name == Source.PYTORCH.value)
        return next(bound, ())

    def resolution(self, cell: Cell) -> Resolution:
        """What *cell* resolves to now."""
        return resolve(cell, self.matrix, self.facts)

    def below(self, cell: Cell) -> Resolution:
        """What *cell* without its components resolves to now."""
        return self.resolution(replace(cell, components=()))

    def fresh(self, cell: Cell, environ: Mapping[str, str]) -> LockedCell:
        """The lock of *cell*, if it fits matrix and facts, and *environ* names the index that it needs.

        :raises Unresolvable: the cell is unavailable, or its index is not configured.
        :raises Stale: the lock is not there, unsound, or made from another matrix or other facts.
        """
        resolution = self.resolution(cell)
        source = require_buildable(resolution).source
        tag = tag_of(resolution)
        if source is Source.PYTORCH and not environ.get(PYTORCH_VARIABLE):
            then = "" if (self.path / tag / "lock.json").exists() else f", then: {how_to_lock(cell)}"
            raise Unresolvable(
                f"{tag}: its torch is only on PyTorch's own index, which is not configured",
                hint=f"set {PYTORCH_VARIABLE} to that index's address{then}",
            )
        locked = load_locked(self.path, tag, how=how_to_lock(cell))
        require_fresh(locked, resolution, self.bound)
        return locked

    def check(self, cells: Iterable[Cell], *, sweeping: bool) -> Checked:
        """Which locks of *cells* are fresh.

        :param sweeping: nobody named the cells, so a lock may be missing that need not be committed.
        """
        fresh, stale = 0, []
        for cell in cells:
            resolution = self.resolution(cell)
            tag = tag_of(resolution) if resolution.build else None
            # Only what the default index serves must be committed; other locks are checked where they are.
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
