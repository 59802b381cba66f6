"""Finds the sections of a shared library that hold fatbin containers, in a 64-bit ELF file for x86-64.

A file in which two sections share bytes with such a section is refused: zeroing device code must not change
anything else.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from torchkiln.device_code.spans import Span, UnknownDeviceCode

# ".nv_fatbin" has the code that is loaded; "__nv_relfatbin" has relocatable code, which the driver links only
# when ".nv_fatbin" does not serve the GPU.
FATBIN_SECTIONS = frozenset({b".nv_fatbin", b"__nv_relfatbin"})

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_IDENT = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
_SHARED, _X86_64 = 3, 62
_NULL, _PROGBITS, _STRTAB, _NOBITS = 0, 1, 3, 8
_COMPRESSED = 0x800
_LONGEST_NAME = 64  # bytes; the names of fatbin sections are shorter
_MOST = 8  # sections with containers; a linker writes one of each name
_RESERVED = 0xFF00  # a number of sections from here on is stored elsewhere


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """An entry of the section table."""

    at: int  # offset of the entry
    name: int
    kind: int
    flags: int
    size: int
    span: Span  # empty for a section without bytes in the file


def fatbin_sections(library: memoryview) -> tuple[Span, ...]:
    """The sections with fatbin containers, ascending; none if the library has no device code.

    :raises UnknownDeviceCode: it is not such an ELF file, or its section table is not valid.
    """
    rows, names, headers = _table(library)
    found = [row for row in rows if row.size and _name(library, names, row) in FATBIN_SECTIONS]
    if len(found) > _MOST:
        raise UnknownDeviceCode(f"more than {_MOST} sections with containers", found[_MOST].at)
    for row in found:
        if row.kind != _PROGBITS or row.flags & _COMPRESSED:
            raise UnknownDeviceCode("a section with containers is compressed, or not PROGBITS", row.at)
        others = (*headers, *(other.span for other in rows if other is not row))
        if any(_overlap(row.span, other) for other in others):
            raise UnknownDeviceCode("a section with containers overlaps another part of the file", row.at)
    return tuple(sorted(row.span for row in found))


def _overlap(one: Span, other: Span) -> bool:
    return max(one.start, other.start) < min(one.stop, other.stop)


def _table(library: memoryview) -> tuple[tuple[_Row, ...], _Row, tuple[Span, ...]]:
    """The section table, the section that has the names, and the bytes of the headers."""
    if len(library) < _HEADER.size or bytes(library[: len(_IDENT)]) != _IDENT:
        raise UnknownDeviceCode("not a 64-bit little-endian ELF file", 0)
    fields = _HEADER.unpack_from(library)
    kind, machine, start, size, count, names = fields[1], fields[2], fields[6], *fields[11:]
    if (kind, machine) != (_SHARED, _X86_64):
        raise UnknownDeviceCode(f"not a shared library for x86-64: type {kind}, machine {machine}", 16)
    stop = start + count * _SECTION.size
    if size != _SECTION.size or not 0 < count < _RESERVED or stop > len(library) or start < _HEADER.size:
        raise UnknownDeviceCode("the section table is missing, or not inside of the file", 40)
    rows = tuple(_row(library, at) for at in range(start, stop, _SECTION.size))
    if names >= count or rows[names].kind != _STRTAB:
        raise UnknownDeviceCode("the section with the names of sections is missing", 62)
    segments = Span(fields[5], fields[5] + fields[9] * fields[10])
    return rows, rows[names], (Span(0, _HEADER.size), segments, Span(start, stop))


def _row(library: memoryview, at: int) -> _Row:
    name, kind, flags, _, offset, size, *_ = _SECTION.unpack_from(library, at)
    span = Span(0, 0) if kind in (_NULL, _NOBITS) else Span(offset, offset + size)
    if span.stop > len(library):
        raise UnknownDeviceCode("a section extends beyond the end of the file", at)
    return _Row(at=at, name=name, kind=kind, flags=flags, size=size, span=span)


def _name(library: memoryview, names: _Row, row: _Row) -> bytes:
    start = names.span.start + row.name
    if row.name >= max(1, names.span.size):
        raise UnknownDeviceCode("the name of a section is outside of the names", row.at)
    piece = bytes(library[start : min(start + _LONGEST_NAME, names.span.stop)])
    return piece.partition(b"\0")[0]
