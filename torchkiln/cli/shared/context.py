"""Holds what is the same for all cells of one `build`: matrix, locks, cache."""

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
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Cell
from torchkiln.model.lock import LockedCell
from torchkiln.model.untrusted import USES, is_untrusted
from torchkiln.store.store import Store


@dataclass(frozen=True, slots=True)
class BuildContext:
    """The options that apply to every cell. `base`: a file, or for Docker a reference; `tools`: a file."""

    matrix: Matrix
    facts: Facts
    images: Path
    base: str | None
    tools: str | None
    locked_only: bool
    quiet: bool

    def store(self) -> Store:
        """The cache."""
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

    def sources(self, *, base_is_image: bool = False) -> BaseSources:
        """The files in --base and --tools. *base_is_image*: --base has the name of an image, not of a file.

        :raises ConfigError: a file does not exist.
        """
        base = None if base_is_image else _file(self.base, "--base")
        return BaseSources(
            images=self.images,
            base_file=base,
            tools_file=_file(self.tools, "--tools"),
            locked_only=self.locked_only,
        )

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


def _file(name: str | None, option: str) -> Path | None:
    if name is not None and not Path(name).is_file():
        command = "base export FILE" if option == "--base" else "base export --tools NAME FILE"
        raise ConfigError(f"{option} {name}: no such file", hint=f"create it with: torchkiln {command}")
    return Path(name) if name else None
