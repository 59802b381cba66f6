"""Finds the sections of a shared library that hold fatbin containers.

A file is refused if such a section overlaps another part of the file, because zeroing device code must not
change anything else.
"""

from __future__ import annotations

from torchkiln.device_code.spans import Span, UnknownDeviceCode
from torchkiln.elf.sections import PROGBITS, BadElf, Section, Sections, sections

# ".nv_fatbin" has the code that is loaded; "__nv_relfatbin" has relocatable code, which the driver links only
# when ".nv_fatbin" does not serve the GPU.
FATBIN_SECTIONS = frozenset({b".nv_fatbin", b"__nv_relfatbin"})

_COMPRESSED = 0x800
_LONGEST_NAME = 64  # bytes; the names of fatbin sections are shorter
_MOST = 8  # maximum sections with containers; a linker writes one section of each name


def fatbin_sections(library: memoryview) -> tuple[Span, ...]:
    """The sections with fatbin containers, ascending; none if the library has no device code.

    :raises UnknownDeviceCode: it is not a shared library for x86-64, or its section table is invalid.
    """
    try:
        table = sections(library)
    except BadElf as error:
        raise UnknownDeviceCode(error.what, error.at) from error
    found = [row for row in table.rows if row.size and _name(library, table, row) in FATBIN_SECTIONS]
    if len(found) > _MOST:
        raise UnknownDeviceCode(f"more than {_MOST} sections with containers", found[_MOST].at)
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
