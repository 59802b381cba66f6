"""What an engine tells while it works, and where it gets wheels: the protocols beside their consumer."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal, Protocol

from torchkiln.model.lock import LockedArchive, LockedWheel

Work = Literal["download", "convert", "toolkit", "compress", "base", "write", "step", "load", "push"]


class Observer(Protocol):
    """Hears of the work. Called from several threads; sizes are bytes."""

    def begin(self, work: Work, name: str, total: int) -> None: ...

    def advance(self, work: Work, name: str, count: int) -> None: ...

    def end(self, work: Work, name: str) -> None: ...


class Fetcher(Protocol):
    """Where wheels come from."""

    def size(self, wheel: LockedWheel) -> int:
        """Bytes of the file, as its server tells them; for a wheel whose lock does not."""

    def tail(self, wheel: LockedWheel, count: int) -> bytes | None:
        """The last *count* bytes of the file; None where the server has no ranges."""

    def fetch(
        self,
        wheel: LockedWheel,
        path: Path,
        *,
        on_progress: Callable[[int], None],
        cancelled: Callable[[], bool],
    ) -> None:
        """Bring the file to *path*, in order, going on from what is there; not verified."""


class ArchiveSource(Protocol):
    """Where the archives of NVIDIA's toolkit come from."""

    def require(self, archives: Collection[LockedArchive]) -> None:
        """See that there is a place to ask, before anything is done.

        :raises BuildFailed: nobody said where *archives* are.
        """

    def archive(
        self,
        archive: LockedArchive,
        part: Path,
        *,
        on_progress: Callable[[int], None],
        cancelled: Callable[[], bool],
    ) -> Path | None:
        """The file, verified: at *part*, or where the user has it; None: it was cancelled."""


class Silent:
    """An observer that keeps to itself."""

    def begin(self, work: Work, name: str, total: int) -> None: ...

    def advance(self, work: Work, name: str, count: int) -> None: ...

    def end(self, work: Work, name: str) -> None: ...
