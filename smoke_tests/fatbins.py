"""Find the containers of device code in a library, and the entries that given GPUs load.

A container ("fatbin") starts with a magic number; its entries are the code of one translation unit for
several architectures. Containers outside of the linker's sections, such as in .rodata, are data of the
library, and are not cut. The numbers are of CUDA's fatbinary format, as found in the wheels of torch 2.7 to
2.11.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from smoke_tests.elf import sections

SECTIONS = (".nv_fatbin", "__nv_relfatbin")
MAGIC = struct.pack("<I", 0xBA55ED50)
_CONTAINER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes of the entries
_ENTRY = struct.Struct(
    "<HHIQ12xI8xQ"
)  # kind, version, bytes of the header and of the code, architecture, flags
_LEAST = 64  # bytes of an entry's header
_PTX, _MACHINE = 1, 2
_ONE_CHIP = 1 << 20  # in flags: sm_90a, for exactly that capability


class Entry(NamedTuple):
    """The code for one architecture: bytes *start* to *stop* of the library, without the entry's header."""

    kind: int
    capability: tuple[int, int]
    one_chip: bool
    start: int
    stop: int

    def __str__(self) -> str:
        kind = {_PTX: "compute_", _MACHINE: "sm_"}.get(self.kind, f"kind {self.kind} for ")
        return f"{kind}{self.capability[0]}{self.capability[1]}{'a' * self.one_chip}"

    def runs_on(self, gpu: tuple[int, int]) -> bool:
        """Whether the entry is machine code that a GPU of this capability can execute."""
        if self.kind != _MACHINE:
            return False
        if self.one_chip:
            return self.capability == gpu
        return self.capability[0] == gpu[0] and self.capability <= gpu


class Container(NamedTuple):
    """The entries of the container at byte *start*; None: they do not follow the format."""

    start: int
    entries: tuple[Entry, ...] | None


def containers(data: bytes) -> Iterator[Container]:
    """The containers in the sections of *data*, bytes or a mapped file, from the first to the last."""
    for name, first, size in sorted(sections(data), key=lambda section: section[1]):
        if name in SECTIONS:
            yield from _between(data, first, first + size)


def _between(data: bytes, at: int, end: int) -> Iterator[Container]:
    at = data.find(MAGIC, at, end)
    while at >= 0:
        stop = _stop(data, at, end)
        if stop is None:  # the magic number's four bytes by chance
            at = data.find(MAGIC, at + 1, end)
            continue
        entries = _entries(data, at + _CONTAINER.size, stop)
        yield Container(at, entries)
        at = data.find(MAGIC, at + 1 if entries is None else stop, end)


def loaded(entries: Sequence[Entry], gpu: tuple[int, int]) -> list[Entry]:
    """The entries that a GPU of this capability can load: the machine code with the highest capability that
    runs on it, and the code for exactly this chip. Without machine code for exactly its capability, also the
    newest PTX that the driver can compile for it, because CU_JIT_FALLBACK_STRATEGY prefers PTX by default.
    NVIDIA does not document whether the code for one chip is preferred."""
    machine = _candidates((entry for entry in entries if entry.runs_on(gpu)), gpu)
    if any(entry.capability == gpu and not entry.one_chip for entry in machine):
        return machine
    ptx = (entry for entry in entries if entry.kind == _PTX and entry.capability <= gpu)
    return [*machine, *_candidates(ptx, gpu)]


def _candidates(entries: Iterable[Entry], gpu: tuple[int, int]) -> list[Entry]:
    """The highest entries that are not for one chip only, and the entries for exactly this chip."""
    found = list(entries)
    plain = _best(entry for entry in found if not entry.one_chip)
    return [*plain, *(entry for entry in found if entry.one_chip and entry.capability == gpu)]


def _best(entries: Iterable[Entry]) -> list[Entry]:
    """The entries with the highest capability."""
    found = list(entries)
    highest = max((entry.capability for entry in found), default=None)
    return [entry for entry in found if entry.capability == highest]


def _stop(data: bytes, at: int, end: int) -> int | None:
    """Where the container at *at* ends, in a section that ends at *end*; None: there is none."""
    if at + _CONTAINER.size > end:
        return None
    _, version, head, size = _CONTAINER.unpack_from(data, at)
    stop = at + head + size
    return stop if (version, head) == (1, _CONTAINER.size) and stop <= end else None


def _entries(data: bytes, at: int, stop: int) -> tuple[Entry, ...] | None:
    """The entries from *at* to *stop*; None if they do not end there."""
    found = []
    while at < stop:
        if at + _LEAST > stop:
            return None
        kind, _, head, size, arch, flags = _ENTRY.unpack_from(data, at)
        start, at = at + head, at + head + size
        if head < _LEAST or at > stop:
            return None
        found.append(Entry(kind, divmod(arch, 10), bool(flags & _ONE_CHIP), start, at))
    return tuple(found)
