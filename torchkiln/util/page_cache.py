"""Writes large files sequentially without filling the page cache.

The kernel caches every page of a written file, though wheels and layers are rarely read again soon. Fresh
pages are slow: 3.6 s of CPU per GB on a virtual machine whose host has to allocate them, against 0.5 s for
reused pages (docs/adr/0011).
"""

from __future__ import annotations

import io
import os
from typing import Any

STEP = 8 << 20
"""Bytes that are written or read between two calls of posix_fadvise."""

_LAG = 64 << 20  # bytes; pages that were written so many bytes before are probably on the disk


class PassingFile(io.FileIO):
    """A file whose written pages are flushed at once and dropped from the page cache soon after."""

    def write(self, data: Any) -> int:
        """As in `io.FileIO`."""
        count = super().write(data) or 0
        end = self.tell()
        for start in range((end - count) // STEP * STEP, end // STEP * STEP, STEP):
            forget(self.fileno(), start, STEP)  # the kernel starts to write these pages to the disk
            forget(self.fileno(), start - _LAG, STEP)
        return count


def forget(file: int, start: int, count: int) -> None:
    """Drop the cached pages of *count* bytes of *file* from *start* on; nothing if *start* is negative."""
    if start >= 0:
        os.posix_fadvise(file, start, count, os.POSIX_FADV_DONTNEED)
