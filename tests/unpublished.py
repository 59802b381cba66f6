"""Lock entries of generated wheels, and a fake index that serves these wheels and can fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path

from tests.layers import sha256
from tests.stored import locked_file
from torchkiln.errors import BuildFailed, NotListed
from torchkiln.model.lock import LockedWheel
from torchkiln.model.progress import Fetcher, Transfer
from torchkiln.wheel.install import parse_name
from torchkiln.wheel.source import Cancelled


def locked_wheel(path: Path) -> LockedWheel:
    """The lock entry of the wheel at *path*."""
    name = parse_name(path.name)
    project = name.distribution.replace("_", "-").lower()
    return locked_file(project, str(name.version), path.name, path.read_bytes())


class FakeIndex:
    """A `Fetcher` that serves wheels from memory, and records the requests in their order.

    Between pieces of `piece` bytes, it waits `pause` seconds. Files in `broken` stop half-way with an error.
    """

    def __init__(
        self,
        wheels: Iterable[Path],
        *,
        ranges: bool = True,
        piece: int = 1 << 20,
        pause: float = 0.0,
        broken: dict[str, str] | None = None,
    ) -> None:
        self.files = {wheel.name: wheel.read_bytes() for wheel in wheels}
        self.ranges, self.piece, self.pause, self.broken = ranges, piece, pause, broken or {}
        self.fetched: list[str] = []
        self.sent: dict[str, int] = {}  # bytes, by file name
        self._lock = threading.Lock()

    def size(self, wheel: LockedWheel) -> int:
        """See `Fetcher`."""
        return len(self.files[wheel.filename])

    def tail(self, wheel: LockedWheel, count: int) -> bytes | None:
        """See `Fetcher`."""
        return self.files[wheel.filename][-count:] if self.ranges else None

    def fetch(self, wheel: LockedWheel, path: Path, transfer: Transfer) -> None:
        """See `Fetcher`."""
        with self._lock:
            self.fetched.append(wheel.filename)
        data = self.files[wheel.filename]
        with path.open("ab", buffering=0) as out:
            for start in range(out.tell(), len(data), self.piece):
                if transfer.cancelled():
                    return
                if wheel.filename in self.broken and start >= len(data) // 2:
                    raise BuildFailed(self.broken[wheel.filename])
                count = out.write(data[start : start + self.piece])
                self.sent[wheel.filename] = self.sent.get(wheel.filename, 0) + count
                transfer.advanced(count)
                if self.pause:
                    time.sleep(self.pause)


class IndexWithout:
    """A `Fetcher` of an index that lacks the wheels *lacks*, or all; for jinja2 it answers 503."""

    def __init__(self, *lacks: str) -> None:
        self.lacks = lacks

    def size(self, wheel: LockedWheel) -> int:
        """See `Fetcher`."""
        return wheel.size

    def tail(self, wheel: LockedWheel, _: int) -> bytes | None:
        """See `Fetcher`."""
        if wheel.name in self.lacks or not self.lacks:
            raise NotListed(f"{wheel.filename}: not on the index", hint="a vault")
        if wheel.name == "jinja2":
            raise BuildFailed("HTTP 503 Service Unavailable")
        return None

    def fetch(self, wheel: LockedWheel, *_: object, **__: object) -> None:
        """See `Fetcher`."""
        self.tail(wheel, 1)
        raise Cancelled


def taken(fetcher: Fetcher, wheel: LockedWheel, path: Path) -> str:
    """Fetch *wheel* to *path*; returns the SHA-256 of what is there."""
    fetcher.fetch(wheel, path, Transfer())
    return sha256(path)
