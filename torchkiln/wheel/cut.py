"""Replaces device code by zeros in the libraries of a wheel, for a thin image.

Only the device code that no GPU of the image loads is replaced. To find it, each large library is inflated to
a temporary file. If a library has no such code, its deflate stream is copied unchanged (spliced). Otherwise
the pinned encoder compresses the changed library, in gzip members of a fixed length.

The driver of an image with cut libraries finds the same entries as in the whole library, because headers
stay, and chooses the same one, whose payload is unchanged. The number of the rule is
`model.recipe.DEVICE_CODE_RULE`. Its reasons are in docs/adr/0038-device-code-for-chosen-gpus.md.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from torchkiln.device_code.fatbin import Container, Entry, Kind, Span, UnknownDeviceCode, containers
from torchkiln.model.device_code import DeviceCode
from torchkiln.oci.encode import MEMBER
from torchkiln.wheel.content import inflate
from torchkiln.wheel.directory import WheelEntry
from torchkiln.wheel.source import WheelFile

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


_LIBRARY = 1_000_000  # bytes; smaller libraries are not cut
_VARIANTS = ("", "a", "f")
Capability = tuple[int, int]


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


def dead_ranges(library: ReadableBuffer, gpus: Sequence[str]) -> tuple[Span, ...]:
    """The spans of *library* to zero for GPUs of the capabilities *gpus* ("9.0"), ascending and disjoint.

    Empty if the library has no device code, or if the GPUs need all of it.

    :raises UnknownDeviceCode: its device code has an unknown format; the library must not be changed.
    """
    wanted = tuple(_capability(gpu) for gpu in gpus)
    with memoryview(library) as view, view.cast("B") as data:
        return tuple(
            entry.payload
            for container in containers(data)
            for entry in _dead(container, wanted)
            if entry.payload.size
        )


def _dead(container: Container, wanted: Iterable[Capability]) -> Iterator[Entry]:
    """The entries that no *wanted* GPU loads; none if the container has no code for the wanted GPUs."""
    needed = {entry for gpu in wanted for entry in _needed(container, gpu)}
    # It is not known how the driver chooses LTO code, so containers with LTO code stay whole.
    if needed and not any(entry.kind == "lto" for entry in container.entries):
        yield from (entry for entry in container.entries if entry not in needed)


def _needed(container: Container, gpu: Capability) -> Iterator[Entry]:
    """The entries from which the driver chooses for *gpu*."""
    code = tuple(_best(container, "cubin", gpu))
    yield from code
    if not any(_compiled_for(entry) == gpu and not entry.variant for entry in code):
        # Without an exact match the driver may prefer PTX (CU_JIT_FALLBACK_STRATEGY).
        yield from _best(container, "ptx", gpu)


def _best(container: Container, kind: Kind, gpu: Capability) -> Iterator[Entry]:
    """For each variant, the entries of the highest architecture that serves *gpu*, as the driver chooses."""
    serving = [entry for entry in container.entries if entry.kind == kind and _serves(entry, gpu)]
    for variant in _VARIANTS:
        alike = [entry for entry in serving if entry.variant == variant]
        highest = max((entry.architecture for entry in alike), default=0)
        yield from (entry for entry in alike if entry.architecture == highest)


def _serves(entry: Entry, gpu: Capability) -> bool:
    """Whether a GPU of the capability *gpu* can load *entry*, or the driver compile it for that GPU."""
    compiled_for = _compiled_for(entry)
    if entry.variant == "a":
        return compiled_for == gpu
    if entry.kind == "ptx" and not entry.variant:
        return compiled_for <= gpu
    return compiled_for[0] == gpu[0] and compiled_for <= gpu


def _compiled_for(entry: Entry) -> Capability:
    return entry.architecture // 10, entry.architecture % 10


def _capability(gpu: str) -> Capability:
    major, minor = gpu.split(".")
    return int(major), int(minor)
