"""Read the dynamic section and the section headers of 64-bit little-endian ELF files."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO, NamedTuple

EXECUTABLE, SHARED = 2, 3  # e_type; 1 is an object file, which is not loaded
PT_LOAD, PT_DYNAMIC, PT_INTERP = 1, 2, 3
DT_NULL, DT_NEEDED, DT_STRTAB, DT_STRSZ, DT_SONAME = 0, 1, 5, 10, 14


class Elf(NamedTuple):
    """The part of an ELF file that the dynamic loader uses."""

    machine: int  # 62 is x86-64; cubins, which are ELF files too, have 190
    needed: tuple[str, ...]
    soname: str | None
    interpreter: str | None


def read_elf(path: Path) -> Elf | None:
    """The file's dynamic section; None if it is not a 64-bit executable or shared object."""
    with path.open("rb") as file:
        head = file.read(64)
        if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
            return None
        kind, machine = struct.unpack_from("<HH", head, 16)
        if kind not in (EXECUTABLE, SHARED):
            return None
        (table,) = struct.unpack_from("<Q", head, 32)
        entry, count = struct.unpack_from("<HH", head, 54)
        segments = []
        for number in range(count):
            raw = _at(file, table + number * entry, 56)
            p_type, _flags, offset, address, _paddr, size, _memory = struct.unpack_from("<IIQQQQQ", raw)
            segments.append((p_type, offset, address, size))
        interpreter = [_at(file, offset, size) for kind, offset, _, size in segments if kind == PT_INTERP]
        needed, soname = _dynamic(file, segments)
    return Elf(machine, needed, soname, interpreter[0].rstrip(b"\0").decode() if interpreter else None)


def _dynamic(file: BinaryIO, segments: list[tuple[int, int, int, int]]) -> tuple[tuple[str, ...], str | None]:
    entries: list[tuple[int, int]] = []
    for kind, offset, _, size in segments:
        if kind == PT_DYNAMIC:
            raw = _at(file, offset, size)
            for tag, value in struct.iter_unpack("<QQ", raw[: len(raw) // 16 * 16]):
                if tag == DT_NULL:
                    break
                entries.append((tag, value))
    values = dict(entries)
    if DT_STRTAB not in values:
        return (), None
    start = _offset(values[DT_STRTAB], segments)
    strings = _at(file, start, values[DT_STRSZ])
    needed = tuple(_string(strings, value) for tag, value in entries if tag == DT_NEEDED)
    return needed, _string(strings, values[DT_SONAME]) if DT_SONAME in values else None


def _offset(address: int, segments: list[tuple[int, int, int, int]]) -> int:
    """The file offset of the virtual *address*."""
    for kind, offset, start, size in segments:
        if kind == PT_LOAD and start <= address < start + size:
            return address - start + offset
    return address


def _string(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode("utf-8", "surrogateescape")


def _at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def sections(data: bytes) -> list[tuple[str, int, int]]:
    """Name, offset and size of each section of the ELF file *data* (bytes or a mapped file); empty if it has
    no sections or is not an ELF file."""
    if len(data) < 64 or data[:6] != b"\x7fELF\x02\x01":
        return []
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names_at = struct.unpack_from("<HHH", data, 58)
    if size < 64 or table + size * count > len(data) or names_at >= count:
        return []
    rows = [struct.unpack_from("<I20xQQ", data, table + number * size) for number in range(count)]
    names = data[rows[names_at][1] : rows[names_at][1] + rows[names_at][2]]
    return [
        (names[name : names.find(b"\0", name)].decode("ascii", "replace"), offset, length)
        for name, offset, length in rows
    ]
