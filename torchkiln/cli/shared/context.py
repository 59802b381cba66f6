"""What is the same for all cells of one `build`: matrix, locks, the cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from torchkiln.build.prerequisites import BaseSources
from torchkiln.cli.shared import console
from torchkiln.errors import ConfigError
from torchkiln.lock.folder import LockFolder
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.model.cell import Cell
from torchkiln.model.lock import LockedCell
from torchkiln.model.untrusted import USES, is_untrusted
from torchkiln.store.root import cache_root
from torchkiln.store.store import Store


@dataclass(frozen=True, slots=True)
class Context:
    """What every cell's build is given. `base`: a file, or for Docker a reference; `tools`: a file."""

    matrix: Matrix
    facts: Facts
    images: Path
    base: str | None
    tools: str | None
    locked_only: bool
    quiet: bool

    def store(self) -> Store:
        """The cache; who waits for another process says so."""
        return Store(cache_root(), on_wait=(lambda _: None) if self.quiet else console.waiting)

    def say(self, line: str) -> None:
        """One line of talk, unless quiet."""
        if not self.quiet:
            console.say(line)

    def trust_of(self, locked: LockedCell) -> dict[str, bool]:
        """Says that *locked* uses an untrusted source; what --json prints of it, if anything."""
        if not is_untrusted(locked):
            return {}
        self.say(f"the lock {USES}: the image cannot be published")
        return {"untrusted": True}

    def sources(self, *, none_of_ours: bool = False) -> BaseSources:
        """Where base and tools may come from; *none_of_ours*: --base names another's image.

        :raises ConfigError: --base or --tools names no file.
        """
        base = None if none_of_ours else _file(self.base, "--base")
        return BaseSources(
            base_file=base, tools_file=_file(self.tools, "--tools"), locked_only=self.locked_only
        )

    def locked(self, cell: Cell) -> LockedCell:
        """The cell's lock, if it still fits matrix and facts."""
        return LockFolder(self.images, self.matrix, self.facts).fresh(cell, os.environ)


def _file(name: str | None, option: str) -> Path | None:
    if name is not None and not Path(name).is_file():
        raise ConfigError(f"{option} {name}: no such file", hint="`base export` makes one")
    return Path(name) if name else None
