"""Holds what is the same for all cells of one `build`: matrix, locks, cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from torchkiln.cli.shared import console
from torchkiln.engine.prerequisites import BaseSources
from torchkiln.locks.folder import LockFolder
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Cell
from torchkiln.model.lock import LockedCell
from torchkiln.model.untrusted import USES, is_untrusted
from torchkiln.store.store import Store


@dataclass(frozen=True, slots=True)
class BuildContext:
    """The options that apply to every cell."""

    matrix: Matrix
    facts: Facts
    images: Path
    locked_only: bool
    quiet: bool

    def store(self) -> Store:
        return console.open_cache(quiet=self.quiet)

    def say(self, line: str) -> None:
        """Print one line of diagnostics, unless quiet."""
        if not self.quiet:
            console.say(line)

    def trust_of(self, locked: LockedCell) -> dict[str, bool]:
        """Warn if *locked* uses an untrusted source; return the fields that this adds to --json."""
        if not is_untrusted(locked):
            return {}
        self.say(f"warning: the lock {USES}: the image cannot be published")
        return {"untrusted": True}

    @property
    def sources(self) -> BaseSources:
        """Where base and tools come from."""
        return BaseSources(images=self.images, locked_only=self.locked_only)

    def locked(self, cell: Cell) -> LockedCell:
        """The lock of *cell*, if it still matches matrix and facts."""
        return self._folder.fresh(cell, os.environ)

    def keep(self, locked: LockedCell) -> None:
        """Write the lock of a thin image if it is missing; if so, print a line."""
        if self._folder.keep(locked):
            cell = locked.resolution.cell
            full = tag_of(self._folder.below(cell))
            self.say(f"locked {tag_of(locked.resolution)}: the wheels are those of {full}")

    @property
    def _folder(self) -> LockFolder:
        return LockFolder(self.images, self.matrix, self.facts)
