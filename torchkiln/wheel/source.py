"""Reads a wheel in order, possibly while it is still being downloaded.

The central directory is at the end of a wheel, so for an incomplete file it is fetched first by a range
request (`tail`) and compared with the file after the download.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from torchkiln.util.files import STEP, forget
from torchkiln.util.strict_json import open_plain

_POLL = 0.005  # seconds


class Cancelled(Exception):
    """The download failed; the downloader reports the reason."""


class WheelFile:
    """The bytes of one wheel of known *size*, read once, in order, and hashed."""

    def __init__(
        self,
        path: Path,
        size: int,
        *,
        tail: bytes = b"",
        cancelled: Callable[[], bool] = lambda: False,
        advanced: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.size = size
        self.position = 0
        self._hash = hashlib.sha256()
        self._tail = tail
        self._path = path
        self._cancelled = cancelled
        self._advanced = advanced
        self._arrived = self._forgotten = 0

    def __enter__(self) -> WheelFile:
        while True:
            try:
                self._opened = open_plain(self._path, follow=False)
                self._file = self._opened.fileno()
                return self
            except FileNotFoundError:
                self._pause()

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def read(self, count: int) -> bytes:
        """The next bytes, at least one, at most *count* and never beyond the end."""
        self.check()
        count = min(count, self.size - self.position)
        self._await(self.position + min(count, 1))
        data = os.pread(self._file, min(count, self._arrived - self.position), self.position)
        if len(data) == 0 and count:
            raise Cancelled  # the file was truncated in the meantime
        self.position += len(data)
        if self.position - self._forgotten > STEP:
            forget(self._file, self._forgotten, STEP)
            self._forgotten += STEP
        self._hash.update(data)
        self._advanced(len(data))
        return data

    def read_exactly(self, count: int) -> bytes:
        """The next *count* bytes; callers have checked that the file is long enough."""
        if self.position + count > self.size:
            raise EOFError(f"unexpected end of file: {count} bytes at {self.position} of {self.size}")
        parts = []
        while count:
            parts.append(self.read(count))
            count -= len(parts[-1])
        return b"".join(parts)

    def skip_to(self, position: int) -> None:
        """Read and hash up to *position*."""
        while self.position < position:
            self.read(min(1 << 20, position - self.position))

    def sha256(self) -> str:
        """The hash of the whole file, after reading the rest; empty if `tail` does not match the file."""
        self.skip_to(self.size)
        same = os.pread(self._file, len(self._tail), self.size - len(self._tail)) == self._tail
        return self._hash.hexdigest() if same else ""

    def check(self) -> None:
        """Raise Cancelled if reading was cancelled."""
        if self._cancelled():
            raise Cancelled

    def at(self, offset: int, count: int) -> bytes:
        """Bytes at any offset, not hashed; waits until they have arrived."""
        self.check()
        start = self.size - len(self._tail)
        if offset >= start:
            return self._tail[offset - start : offset - start + count]
        self._await(min(offset + count, self.size))
        return os.pread(self._file, count, offset)

    def _await(self, length: int) -> None:
        """Wait until the first *length* bytes are written."""
        while self._arrived < length:
            self._arrived = min(os.fstat(self._file).st_size, self.size)
            if self._arrived < length:
                self._pause()

    def _pause(self) -> None:
        self.check()
        time.sleep(_POLL)
