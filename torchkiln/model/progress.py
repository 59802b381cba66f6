"""Defines the protocols of progress reports and of the sources of wheels and archives."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from torchkiln.model.lock import LockedArchive, LockedWheel

Work = Literal[
    "download", "convert", "toolkit", "compress", "packages", "write", "step", "load", "push", "verify",
    "read", "unpack",
]  # fmt: skip


class Observer(Protocol):
    """Receives progress, from several threads. The unit is bytes, but packages for the work "packages"."""

    def begin(self, work: Work, name: str, total: int) -> None: ...

    def advance(self, work: Work, name: str, count: int) -> None: ...

    def end(self, work: Work, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Transfer:
    """The caller of a download: *advanced* gets each number of new bytes, *cancelled* ends it."""

    advanced: Callable[[int], None] = lambda _: None
    cancelled: Callable[[], bool] = lambda: False


class Fetcher(Protocol):
    def size(self, wheel: LockedWheel) -> int:
        """The size of the file in bytes, according to its server, for a wheel whose lock has no size."""

    def tail(self, wheel: LockedWheel, count: int) -> bytes | None:
        """The last *count* bytes of the file; None: the server does not support range requests."""

    def fetch(self, wheel: LockedWheel, path: Path, transfer: Transfer) -> None:
        """Download the file to *path*, or resume the download there; the caller verifies the file."""


class ArchiveSource(Protocol):
    def require(self, archives: Collection[LockedArchive]) -> None:
        """Check that the location of *archives* is set.

        :raises BuildFailed: the location is not set.
        """

    def demand_reachable(self, archives: Collection[LockedArchive]) -> None:
        """Request one byte of one of *archives*; do nothing if *archives* is empty.

        :raises BuildFailed: the location cannot be reached, or no longer has the file.
        """

    def archive(self, archive: LockedArchive, part: Path, transfer: Transfer) -> Path | None:
        """The path of the verified file: *part*, or a path in the user's folder; None: cancelled."""


class Silent:
    """An observer that does nothing."""

    def begin(self, work: Work, name: str, total: int) -> None: ...

    def advance(self, work: Work, name: str, count: int) -> None: ...

    def end(self, work: Work, name: str) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Reporting:
    """Where a task reports: lines of diagnostics, and its progress."""

    say: Callable[[str], None] = lambda _: None
    observer: Observer = field(default_factory=Silent)


UNREPORTED = Reporting()
