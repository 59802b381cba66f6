"""Replaces device code by zeros in the libraries of a wheel, for a thin image.

Only the device code that no GPU of the image loads is replaced. To find it, each large library is inflated to
a temporary file. If a library has no such code, its deflate stream is copied unchanged (spliced). Otherwise
the pinned encoder compresses the changed library, in gzip members of a fixed length.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from torchkiln.device_code.cut import dead_ranges
from torchkiln.device_code.fatbin import Span, UnknownDeviceCode
from torchkiln.model.device_code import DeviceCode
from torchkiln.oci.encode import MEMBER
from torchkiln.wheel.content import inflate
from torchkiln.wheel.directory import WheelEntry
from torchkiln.wheel.source import WheelFile

_LIBRARY = 1_000_000  # bytes; smaller libraries are not cut


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """Cuts libraries for the GPUs of `device_code`; `scratch` is a temporary file for one library."""

    device_code: DeviceCode
    scratch: BinaryIO

    def concerns(self, wheel: str, entry: WheelEntry) -> bool:
        """Whether *entry* of the package *wheel* is a large library that is cut if it has device code."""
        name = entry.name.rpartition("/")[2]
        return ".so" in name and entry.size > _LIBRARY and self.device_code.cuts(wheel, entry.name)

    def dead_ranges(self, file: WheelFile, entry: WheelEntry, filename: str) -> tuple[Span, ...]:
        """Inflate the library *entry* into `scratch`; return the ranges to replace by zeros, ascending.

        There are none if the GPUs need all of its device code, or if the format of that code is unknown.

        :raises BadWheel: the entry has a fault.
        """
        self.scratch.seek(0)
        for _, content in inflate(file, entry, filename):
            self.scratch.write(content)
        self.scratch.flush()
        try:
            with mmap.mmap(self.scratch.fileno(), entry.size, prot=mmap.PROT_READ) as library:
                return dead_ranges(library, self.device_code.gpus)
        except UnknownDeviceCode:
            return ()

    def pieces(
        self, file: WheelFile, entry: WheelEntry, dead: Sequence[Span]
    ) -> Iterator[tuple[bytes, bytes]]:
        """For each gzip member: the bytes of the library in `scratch`, and these with *dead* set to zero."""
        stops = [span.stop for span in dead]
        for start in range(0, entry.size, MEMBER):
            file.check()
            original = os.pread(self.scratch.fileno(), min(MEMBER, entry.size - start), start)
            parts, at = [], 0
            for span in dead[bisect_right(stops, start) :]:
                if span.start >= start + len(original):
                    break
                first, last = max(at, span.start - start), min(len(original), span.stop - start)
                parts += [original[at:first], bytes(last - first)]
                at = last
            yield original, b"".join((*parts, original[at:]))
