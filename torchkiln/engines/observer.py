"""What an engine tells while it works, and where it gets wheels: the protocols beside their consumer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

from torchkiln.nouns import LockedWheel

Work = Literal["download", "convert", "join", "compress", "base", "write", "step", "load", "push"]


class Observer(Protocol):
    """Hears of the work. Called from several threads; sizes are bytes."""

    def begin(self, work: Work, name: str, total: int) -> None: ...

    def advance(self, work: Work, name: str, count: int) -> None: ...

    def end(self, work: Work, name: str) -> None: ...


class Fetcher(Protocol):
    """Where wheels come from."""

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


class Silent:
    """An observer that keeps to itself."""

    def begin(self, work: Work, name: str, total: int) -> None: ...

    def advance(self, work: Work, name: str, count: int) -> None: ...

    def end(self, work: Work, name: str) -> None: ...
