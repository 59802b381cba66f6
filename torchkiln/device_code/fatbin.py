"""Reads fatbin containers: the same kernels compiled for several GPUs, one entry for each.

    container   [magic, version, header size, size][entry][entry] ...
    entry       [kind, version, header size, payload size, architecture, flags][options][payload]

NVIDIA does not document the format. docs/adr/0038-device-code-for-chosen-gpus.md says how the fields were
found. A file with any other field or value is refused.

A file is refused if a section of containers overlaps another part of the file, because zeroing device code
must not change anything else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torchkiln.elf.sections import PROGBITS, BadElf, Section, Sections, sections

Kind = Literal["ptx", "cubin", "lto"]
Variant = Literal["", "a", "f"]
_MAGIC = 0xBA55ED50
_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_KINDS: Mapping[int, Kind] = {1: "ptx", 2: "cubin", 8: "lto"}
_PREFIXES: Mapping[Kind, str] = {"ptx": "compute", "cubin": "sm", "lto": "lto"}
_VERSION, _ENTRY_VERSION = 1, 0x0101
_HOST = 0x11  # 64-bit addresses, for Linux
_DEBUG = 0x2
_LZ4, _ZSTD = 0x2000, 0x8000
_SCRAMBLED = 0x10000  # LTO code only
_EXACT, _FAMILY = 0x100000, 0x200000
_ATTRIBUTES = 0x1000000  # machine code for sm_100 and newer
_ALWAYS = _HOST | _DEBUG | _LZ4 | _ZSTD | _EXACT | _FAMILY
_FLAGS: Mapping[Kind, int] = {"ptx": _ALWAYS, "cubin": _ALWAYS | _ATTRIBUTES, "lto": _ALWAYS | _SCRAMBLED}
_ARCHITECTURES = range(20, 1000)
_MOST = 1_000_000  # maximum entries of a section; cuBLASLt has the most, a few thousand
_ALIGNMENT = 8
_PIECE = 1 << 16  # maximum bytes of padding that are read at a time
# ".nv_fatbin" has the code that is loaded; "__nv_relfatbin" has relocatable code, which the driver links only
# when ".nv_fatbin" does not serve the GPU.
FATBIN_SECTIONS = frozenset({b".nv_fatbin", b"__nv_relfatbin"})
_COMPRESSED = 0x800
_LONGEST_NAME = 64  # bytes; the names of fatbin sections are shorter
_MOST_ELF = 8  # maximum sections with containers; a linker writes one section of each name


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """The bytes from `start` up to, but not including, `stop`."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


class UnknownDeviceCode(Exception):
    """A file has device code in an unknown format; callers do not change the file.

    The message says what is unknown, and at which byte.
    """

    def __init__(self, what: str, at: int) -> None:
        self.what = what
        self.at = at
        super().__init__(f"at byte {at:#x}: {what}")

    def __reduce__(self) -> tuple[type[UnknownDeviceCode], tuple[str, int]]:  # worker processes pickle it
        return UnknownDeviceCode, (self.what, self.at)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """The code for one architecture."""

    kind: Kind
    architecture: int  # 90 for sm_90 and compute_90
    variant: Variant  # "a": for exactly this capability; "f": for its family
    payload: Span  # the header ends where the payload starts

    @property
    def name(self) -> str:
        """The name that NVIDIA's compiler uses: `sm_90a`, `compute_90`, `lto_90`."""
        return f"{_PREFIXES[self.kind]}_{self.architecture}{self.variant}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """Entries for several architectures; the driver loads the one that fits the GPU."""

    span: Span
    entries: tuple[Entry, ...]


class _Fields(NamedTuple):
    """The first 64 bytes of an entry; after them are the options of the compiler, or attributes."""

    kind: int
    version: int
    header: int  # bytes
    payload: int  # bytes, with padding
    packed: int  # compressed bytes without padding; 0: not compressed
    options: int  # offset in the header
    minor: int  # minor and major version of the code's format
    major: int
    architecture: int
    name: int  # offset in the header
    name_length: int
    flags: int
    key: int  # of a scrambled payload
    unpacked: int  # uncompressed bytes; 0: not compressed


def containers(library: memoryview) -> Iterator[Container]:
    """The containers of a shared library, in the order of the file.

    :raises UnknownDeviceCode: it is not a shared library for x86-64, or its device code has an unknown
        format.
    """
    for section in fatbin_sections(library):
        yield from _containers(library, section)


def _containers(library: memoryview, section: Span) -> Iterator[Container]:
    at, left = section.start, _MOST
    while (at := _after_padding(library, Span(at, section.stop))) < section.stop:
        if (at - section.start) % _ALIGNMENT:
            raise UnknownDeviceCode("a container that is not aligned", at)
        container = _container(library, at, section)
        left -= 1 + len(container.entries)
        if left < 0:
            raise UnknownDeviceCode(f"more than {_MOST} containers and entries", at)
        yield container
        at = container.span.stop


def _after_padding(library: memoryview, span: Span) -> int:
    """The offset of the first byte in *span* that is not zero; the end of *span* if there is none."""
    at, size = span.start, _ALIGNMENT  # most containers follow without padding
    while at < span.stop:
        piece = bytes(library[at : min(at + size, span.stop)])
        if rest := piece.lstrip(b"\0"):
            return at + len(piece) - len(rest)
        at, size = at + len(piece), min(2 * size, _PIECE)
    return span.stop


def _container(library: memoryview, at: int, section: Span) -> Container:
    if at + _CONTAINER.size > section.stop:
        raise UnknownDeviceCode("a container extends beyond its section", at)
    magic, version, header, size = _CONTAINER.unpack_from(library, at)
    if magic != _MAGIC:
        raise UnknownDeviceCode(f"neither a container nor padding: {magic:#010x}", at)
    if (version, header) != (_VERSION, _CONTAINER.size):
        raise UnknownDeviceCode(f"a container of version {version} with a header of {header} bytes", at)
    span = Span(at, at + header + size)
    if span.stop > section.stop:
        raise UnknownDeviceCode("a container extends beyond its section", at)
    return Container(span=span, entries=tuple(_entries(library, at + header, span.stop)))


def _entries(library: memoryview, at: int, stop: int) -> Iterator[Entry]:
    for _ in range(_MOST):
        if at == stop:
            return
        entry = _entry(library, at, stop)
        yield entry
        at = entry.payload.stop
    raise UnknownDeviceCode(f"more than {_MOST} entries", at)


def _entry(library: memoryview, at: int, stop: int) -> Entry:
    """The entry at *at*, of a container that ends at *stop*."""
    if at + _ENTRY.size > stop:
        raise UnknownDeviceCode("an entry extends beyond its container", at)
    fields = _Fields._make(_ENTRY.unpack_from(library, at))
    kind = _KINDS.get(fields.kind)
    if kind is None or fields.version != _ENTRY_VERSION:
        raise UnknownDeviceCode(f"an entry of kind {fields.kind} and version {fields.version:#x}", at)
    if fault := _fault(kind, fields):
        raise UnknownDeviceCode(f"an entry with {fault}", at)
    payload = Span(at + fields.header, at + fields.header + fields.payload)
    if payload.stop > stop:
        raise UnknownDeviceCode("an entry extends beyond its container", at)
    start = _start(kind, fields.flags)
    if bytes(library[payload.start : payload.start + len(start)]) != start:
        raise UnknownDeviceCode("the payload of an entry does not match the kind in its header", at)
    return Entry(kind=kind, architecture=fields.architecture, variant=_variant(fields.flags), payload=payload)


def _fault(kind: Kind, fields: _Fields) -> str:
    """The unknown or invalid part of *fields*; empty if there is none."""
    if fields.header < _ENTRY.size or fields.header % _ALIGNMENT or fields.payload % _ALIGNMENT:
        return f"a header of {fields.header} and a payload of {fields.payload} bytes"
    if fields.architecture not in _ARCHITECTURES:
        return f"the architecture {fields.architecture}"
    both = (_LZ4 | _ZSTD, _EXACT | _FAMILY)
    known = fields.flags & _HOST == _HOST and not fields.flags & ~_FLAGS[kind]
    if not known or any(fields.flags & pair == pair for pair in both):
        return f"the flags {fields.flags:#x}"
    if fields.name_length or (fields.key and not fields.flags & _SCRAMBLED):
        return "a name or a key"
    if fields.options and not _ENTRY.size <= fields.options < fields.header:
        return f"options at {fields.options} of {fields.header} bytes"
    if fields.flags & (_LZ4 | _ZSTD):
        agree = 0 < fields.packed <= fields.payload < fields.packed + _ALIGNMENT and fields.unpacked > 0
    else:
        agree = fields.packed == fields.unpacked == 0
    if not agree:
        return f"{fields.payload} bytes, {fields.packed} compressed, {fields.unpacked} uncompressed"
    return ""


def _start(kind: Kind, flags: int) -> bytes:
    """The bytes with which a payload of *kind* and *flags* begins; empty if they are not known."""
    if flags & _SCRAMBLED or flags & _LZ4:
        return b""
    if flags & _ZSTD:
        return b"\x28\xb5\x2f\xfd"
    return b"\x7fELF" if kind == "cubin" else b""


def _variant(flags: int) -> Variant:
    return "a" if flags & _EXACT else "f" if flags & _FAMILY else ""


def fatbin_sections(library: memoryview) -> tuple[Span, ...]:
    """The sections with fatbin containers, ascending; none if the library has no device code.

    :raises UnknownDeviceCode: it is not a shared library for x86-64, or its section table is invalid.
    """
    try:
        table = sections(library)
    except BadElf as error:
        raise UnknownDeviceCode(error.what, error.at) from error
    found = [row for row in table.rows if row.size and _name(library, table, row) in FATBIN_SECTIONS]
    if len(found) > _MOST_ELF:
        raise UnknownDeviceCode(f"more than {_MOST_ELF} sections with containers", found[_MOST_ELF].at)
    headers = tuple(Span(*bounds) for bounds in table.headers)
    for row in found:
        if row.kind != PROGBITS or row.flags & _COMPRESSED:
            raise UnknownDeviceCode("a section with containers is compressed, or not PROGBITS", row.at)
        others = (*headers, *(_span(other) for other in table.rows if other is not row))
        if any(_overlap(_span(row), other) for other in others):
            raise UnknownDeviceCode("a section with containers overlaps another part of the file", row.at)
    return tuple(sorted(map(_span, found)))


def _span(row: Section) -> Span:
    return Span(row.start, row.stop)


def _overlap(one: Span, other: Span) -> bool:
    return max(one.start, other.start) < min(one.stop, other.stop)


def _name(library: memoryview, table: Sections, row: Section) -> bytes:
    names = table.names
    start = names.start + row.name
    if row.name >= max(1, names.stop - names.start):
        raise UnknownDeviceCode("the name of a section is outside of the string table", row.at)
    piece = bytes(library[start : min(start + _LONGEST_NAME, names.stop)])
    return piece.partition(b"\0")[0]
