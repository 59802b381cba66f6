"""Reads the SONAME of a shared library, the name by which the loader finds it.

It uses the program headers, as the loader and ldconfig do; the section table can be missing or wrong.
The file is not trusted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from torchkiln.elf.sections import HEADER, BadElf, Data, is_elf

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_PAIR = struct.Struct("<QQ")
_LOAD, _DYNAMIC = 1, 2
_NULL, _STRTAB, _SONAME = 0, 5, 14
_MOST = 10_000  # segments, and entries of the dynamic section
_LONGEST = 4096  # bytes of a name


def soname_of(data: Data) -> str:
    """The SONAME in *data*; empty if it has none.

    :raises BadElf: it is not a 64-bit little-endian ELF file, or malformed.
    """
    head = bytes(data[:HEADER])
    if len(head) < HEADER or not is_elf(head):
        raise BadElf("not a 64-bit little-endian ELF file", 0)
    segments = list(_segments(data, head))
    dynamic = [(offset, size) for kind, offset, _, size in segments if kind == _DYNAMIC]
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
    return _text(data, _offset(segments, found[_STRTAB]) + found[_SONAME])


def _segments(data: Data, head: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Type, offset, address and size in the file of each segment."""
    fields = _HEADER.unpack(head)
    start, size, count = fields[5], fields[9], fields[10]
    if count and (size != _SEGMENT.size or count > _MOST or start + count * size > len(data)):
        raise BadElf("the program headers are not inside of the file", 32)
    for kind, _, offset, address, _, inside, _, _ in _SEGMENT.iter_unpack(data[start : start + count * size]):
        yield kind, offset, address, inside


def _entries(data: Data, offset: int, size: int) -> Iterator[tuple[int, int]]:
    """The entries of the dynamic section, up to the last."""
    count = size // _PAIR.size
    if count > _MOST or offset + size > len(data):
        raise BadElf("the dynamic section is not inside of the file, or too long", offset)
    for tag, value in _PAIR.iter_unpack(data[offset : offset + count * _PAIR.size]):
        if tag == _NULL:
            return
        yield tag, value


def _offset(segments: list[tuple[int, int, int, int]], address: int) -> int:
    """The offset of *address* in the file."""
    for kind, offset, start, size in segments:
        if kind == _LOAD and start <= address < start + size:
            return offset + address - start
    raise BadElf("DT_STRTAB is in no segment", HEADER)


def _text(data: Data, start: int) -> str:
    end = start + _LONGEST
    name, zero, _ = bytes(data[start:end]).partition(b"\0")
    if not zero:
        raise BadElf("a name is outside of the file, or too long", start)
    return name.decode("utf-8", "backslashreplace")
