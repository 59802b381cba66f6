"""Reads the tables of a 64-bit little-endian ELF file, and its SONAME; the file is not trusted.

The SONAME, by which the loader finds a library, is read by the program headers, as the loader and ldconfig
do: the section table can be missing or wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

X86_64 = 62
SHARED = 3  # the ELF file type; that of a position-independent program, too
NULL, PROGBITS, STRTAB, DYNAMIC, NOBITS, DYNSYM = 0, 1, 3, 6, 8, 11
HEADER = 64  # bytes

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_IDENT = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
_PAIR = struct.Struct("<QQ")
_LOAD, _DYNAMIC = 1, 2
_NULL, _STRTAB, _SONAME = 0, 5, 14
_MOST = 10_000  # segments, and entries of the dynamic section
_LONGEST = 4096  # bytes of a name
_RESERVED = 0xFF00  # an ELF header cannot hold this number of sections


class BadElf(Exception):
    """The file is not a supported ELF file, or is malformed; the message says why, and at which byte."""

    def __init__(self, what: str, at: int) -> None:
        self.what = what
        self.at = at
        super().__init__(f"at byte {at:#x}: {what}")


class Data(Protocol):
    """The bytes of a file: a memoryview, or an object that has only the bytes that are read."""

    def __len__(self) -> int: ...

    def __getitem__(self, span: slice, /) -> memoryview: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """An entry of the section table. `start`, `stop`: its bytes in the file; equal if it has none."""

    at: int  # offset of the entry
    name: int  # offset in the section with the names
    kind: int
    flags: int
    size: int
    start: int
    stop: int
    link: int  # number of the section to which this one refers


@dataclass(frozen=True, kw_only=True, slots=True)
class Sections:
    """The section table, the section that has the names, and the bytes of the headers and tables."""

    rows: tuple[Section, ...]
    names: Section
    headers: tuple[tuple[int, int], ...]


def is_elf(head: bytes) -> bool:
    """Whether a file that begins with *head* is a 64-bit little-endian ELF file."""
    return head.startswith(_IDENT)


def landmarks(head: bytes) -> list[tuple[int, int]]:
    """Start and stop of the section table, and of the dynamic section, of a file that begins with *head*.

    The dynamic section is found by the program headers, so that the section table need not be read first.
    """
    if len(head) < HEADER:
        return []
    found = [_table(_HEADER.unpack(head[:HEADER]))]
    with suppress(BadElf):
        dynamic = (row for row in segments(memoryview(head)) if row[0] == _DYNAMIC)
        found += [(at, at + size) for _, at, _, size in dynamic][:1]
    return found


def segments(data: Data) -> Iterator[tuple[int, int, int, int]]:
    """Type, offset, address and size in the file of each segment.

    :raises BadElf: it is not a 64-bit little-endian ELF file, or its program headers are invalid.
    """
    head = bytes(data[:HEADER])
    if len(head) < HEADER or not is_elf(head):
        raise BadElf("not a 64-bit little-endian ELF file", 0)
    fields = _HEADER.unpack(head)
    start, size, count = fields[5], fields[9], fields[10]
    if count and (size != _SEGMENT.size or count > _MOST or start + count * size > len(data)):
        raise BadElf("the program headers are not inside of the file", 32)
    for kind, _, offset, address, _, inside, _, _ in _SEGMENT.iter_unpack(data[start : start + count * size]):
        yield kind, offset, address, inside


def _table(header: tuple[int, ...]) -> tuple[int, int]:
    return header[6], header[6] + header[12] * _SECTION.size


def sections(data: Data) -> Sections:
    """The sections of *data*, a shared library for x86-64.

    :raises BadElf: it is another kind of file, or its section table is invalid.
    """
    if len(data) < HEADER or not is_elf(bytes(data[: len(_IDENT)])):
        raise BadElf("not a 64-bit little-endian ELF file", 0)
    fields = _HEADER.unpack(data[:HEADER])
    kind, machine, size, count, names = fields[1], fields[2], *fields[11:]
    if machine != X86_64 or kind != SHARED:
        raise BadElf(f"not a shared library for x86-64: type {kind}, machine {machine}", 16)
    start, stop = _table(fields)
    if size != _SECTION.size or not 0 < count < _RESERVED or stop > len(data) or start < HEADER:
        raise BadElf("the section table is missing, or not inside of the file", 40)
    table = data[start:stop]
    rows = tuple(
        _row(fields, start + number * _SECTION.size, len(data))
        for number, fields in enumerate(_SECTION.iter_unpack(table))
    )
    if names >= count or rows[names].kind != STRTAB:
        raise BadElf("the section name string table (.shstrtab) is missing", 62)
    segments = (fields[5], fields[5] + fields[9] * fields[10])
    return Sections(rows=rows, names=rows[names], headers=((0, HEADER), segments, (start, stop)))


def _row(fields: tuple[int, ...], at: int, length: int) -> Section:
    name, kind, flags, _, offset, size, link, *_ = fields
    start, stop = (0, 0) if kind in (NULL, NOBITS) else (offset, offset + size)
    if stop > length:
        raise BadElf("a section extends beyond the end of the file", at)
    return Section(at=at, name=name, kind=kind, flags=flags, size=size, start=start, stop=stop, link=link)


def soname_of(data: Data) -> str:
    """The SONAME in *data*; empty if it has none.

    :raises BadElf: it is not a 64-bit little-endian ELF file, or malformed.
    """
    rows = list(segments(data))
    dynamic = [(offset, size) for kind, offset, _, size in rows if kind == _DYNAMIC]
    if not dynamic:
        return ""
    if len(dynamic) > 1:
        raise BadElf("two dynamic sections", HEADER)
    found = dict[int, int]()
    for tag, value in _entries(data, *dynamic[0]):
        if tag in found and tag in (_STRTAB, _SONAME):
            raise BadElf("duplicate DT_SONAME or DT_STRTAB", dynamic[0][0])
        found[tag] = value
    if _SONAME not in found:
        return ""
    if _STRTAB not in found:
        raise BadElf("DT_SONAME without DT_STRTAB", dynamic[0][0])
    return _text(data, _offset(rows, found[_STRTAB]) + found[_SONAME])


def _entries(data: Data, offset: int, size: int) -> Iterator[tuple[int, int]]:
    """The entries of the dynamic section, up to the last."""
    count = size // _PAIR.size
    if count > _MOST or offset + size > len(data):
        raise BadElf("the dynamic section is not inside of the file, or too long", offset)
    for tag, value in _PAIR.iter_unpack(data[offset : offset + count * _PAIR.size]):
        if tag == _NULL:
            return
        yield tag, value


def _offset(rows: list[tuple[int, int, int, int]], address: int) -> int:
    for kind, offset, start, size in rows:
        if kind == _LOAD and start <= address < start + size:
            return offset + address - start
    raise BadElf("DT_STRTAB is in no segment", HEADER)


def _text(data: Data, start: int) -> str:
    end = start + _LONGEST
    name, zero, _ = bytes(data[start:end]).partition(b"\0")
    if not zero:
        raise BadElf("a name is outside of the file, or too long", start)
    return name.decode("utf-8", "backslashreplace")
