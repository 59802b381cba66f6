"""Zeroes the device code that no GPU of a thin image loads, in the libraries of a wheel.

Whether a library has such code is known only when all of it is read, so it is first inflated to a temporary
file. If there is none, its deflate stream is spliced as that of any other file. Otherwise the library is
compressed by the pinned encoder, in members of a fixed length.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from torchkiln.device_code.cut import dead_ranges
from torchkiln.device_code.spans import Span, UnknownDeviceCode
from torchkiln.model.device_code import DeviceCode
from torchkiln.oci.encode import MEMBER
from torchkiln.wheel.content import inflate
from torchkiln.wheel.directory import WheelEntry
from torchkiln.wheel.source import WheelFile

_LIBRARY = 1_000_000  # bytes; smaller libraries are not cut


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """The device code that libraries keep; `scratch` is a temporary file for one library."""

    device_code: DeviceCode
    scratch: BinaryIO

    def concerns(self, wheel: str, entry: WheelEntry) -> bool:
        """Whether the *entry* of *wheel* is a large library in which device code is cut."""
        name = entry.name.rpartition("/")[2]
        return ".so" in name and entry.size > _LIBRARY and self.device_code.cuts(wheel, entry.name)

    def dead_ranges(self, file: WheelFile, entry: WheelEntry, filename: str) -> tuple[Span, ...]:
        """Inflate the library *entry* into `scratch`; return its bytes to be zeroed, in order.

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
        """The library in `scratch` as (original, zeroed) pieces, each for a member of the layer."""
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
