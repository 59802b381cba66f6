"""The end of a zip → the lines of its directory, read strictly.

Readers of zips differ in what they forgive: which of two ends counts, which of two names, whether the count
of entries means anything. A wheel may mean one thing only, so all that is forgiven elsewhere is refused here:
what this reader takes, `zipfile`, and so pip, reads the same way. One reader for every version of Python
also keeps a digest from hanging on the host's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from torchkiln.errors import BadWheel
from torchkiln.wheel.source import WheelFile

MOST_ENTRIES = 200_000  # torch has 11,000; memory is bounded by this
_LARGEST = 32 << 20  # bytes of the directory; torch's takes 1.4 MB
_LINE = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_LONGEST_COMMENT = 0xFFFF
_NEWEST = 63  # the version of the format that a reader must know: 6.3 is the last
_ZIP64, _UNICODE_PATH = 0x0001, 0x7075
UTF8, STREAMED, ENCRYPTED = 0x800, 0x8, 0x2041
_PLAIN_FLAGS = UTF8 | STREAMED | 0x6  # 0x6: how hard the compressor tried


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One entry as the directory tells it; `mode` is that of Unix, 0 where none was written."""

    name: str
    raw_name: bytes
    offset: int  # of its local header
    compressed: int
    size: int
    crc: int
    method: int
    flags: int
    mode: int


class Unreadable(Exception):
    """The zip contradicts itself or its format; the text says how."""


def directory(wheel: WheelFile, filename: str) -> tuple[list[Line], int]:
    """The directory of the wheel *filename*, in its own order, and where in the file it begins.

    :raises BadWheel: it is not there, not whole, or may be read in two ways.
    """
    try:
        count, start, size = _end(wheel)
        if count > MOST_ENTRIES or size > _LARGEST:
            raise BadWheel(filename, f"{count} entries in {size} bytes; {MOST_ENTRIES} at most")
        data = wheel.at(start, size)
        lines = list(_lines(data, count))
    except (Unreadable, UnicodeDecodeError) as error:
        raise BadWheel(filename, f"not a readable zip: {error}") from error
    return lines, start


def _end(wheel: WheelFile) -> tuple[int, int, int]:
    """What the end record says: number of entries, the directory's offset and size."""
    length = min(wheel.size, _END.size + _LONGEST_COMMENT)
    tail = wheel.at(wheel.size - length, length)
    place = tail.rfind(b"PK\5\6")
    if place < 0 or len(tail) - place < _END.size:
        raise Unreadable("it has no end record: cut short, or no zip at all")
    others = [at for at in _places(tail[:place], b"PK\5\6") if _fits(tail, at)]
    if others:
        raise Unreadable("two end records, each of which could be meant")
    if not _fits(tail, place):
        raise Unreadable("bytes behind its end record that are not the comment told there")
    _, disk, first_disk, here, count, size, offset, _ = _END.unpack_from(tail, place)
    position = wheel.size - length + place  # of the first byte behind the directory
    before = position - _LOCATOR.size
    locator = wheel.at(before, _LOCATOR.size) if before >= 0 else b""
    if locator.startswith(b"PK\6\7"):
        told = (disk, first_disk, here, count, size, offset)
        position, (disk, first_disk, here, count, size, offset) = _end64(wheel, locator, before, told)
    if disk or first_disk or here != count:
        raise Unreadable("one of several disks, or two counts of its entries")
    if offset + size < position:
        raise Unreadable("bytes stand before the first entry, or between the directory and its end")
    if offset + size > position:
        raise Unreadable("the directory is not where its end record says, or not whole")
    return count, offset, size


def _fits(tail: bytes, place: int) -> bool:
    """Whether the end record at *place*, with the comment that it tells, ends where the file ends."""
    if len(tail) - place < _END.size:
        return False
    comment = _END.unpack_from(tail, place)[-1]
    return bool(place + _END.size + comment == len(tail))


def _places(data: bytes, what: bytes) -> Iterator[int]:
    place = data.find(what)
    while place >= 0:
        yield place
        place = data.find(what, place + 1)


def _end64(
    wheel: WheelFile, locator: bytes, before: int, told: tuple[int, ...]
) -> tuple[int, tuple[int, ...]]:
    """The zip64 end record: its place, and its six values, which must not contradict the short ones."""
    position = before - _END64.size
    data = wheel.at(position, _END64.size) if position >= 0 else b""
    if not data.startswith(b"PK\6\6"):
        raise Unreadable("no zip64 end record before its locator")
    _, length, _, _, *values = _END64.unpack(data)
    _, disk, offset, disks = _LOCATOR.unpack(locator)
    if length != _END64.size - 12 or disk or disks > 1 or offset != position:
        raise Unreadable("the zip64 end record and its locator disagree")
    for short, long, largest in zip(told, values, (0xFFFF,) * 4 + (0xFFFFFFFF,) * 2, strict=True):
        if short not in (long, largest):
            raise Unreadable("its two end records disagree")
    return position, tuple(values)


def _lines(data: bytes, count: int) -> Iterator[Line]:
    """The *count* lines that fill *data*."""
    place = 0
    for _ in range(count):
        if len(data) - place < _LINE.size:
            raise Unreadable("the directory is not whole, or has fewer entries than told")
        fields = _LINE.unpack_from(data, place)
        signature, _, version, flags, method, _, _, crc, compressed, size, *lengths, disk, _, mode, at = (
            fields
        )
        place += _LINE.size
        name, extra, comment = lengths
        if signature != b"PK\1\2" or len(data) - place < name + extra + comment:
            raise Unreadable("an entry of the directory is broken")
        raw = data[place : place + name]
        text = decoded(raw, flags)
        fields_ = extra_fields(data[place + name : place + name + extra], text)
        place += name + extra + comment
        if version & 0xFF > _NEWEST or disk:
            raise Unreadable(
                f"entry {text!r} needs version {version / 10} of the format, or lies on another disk"
            )
        size, compressed, at = widened((size, compressed, at), fields_, text)
        yield Line(
            name=text,
            raw_name=raw,
            offset=at,
            compressed=compressed,
            size=size,
            crc=crc,
            method=method,
            flags=flags,
            mode=mode >> 16,
        )
    if place != len(data):
        raise Unreadable("more in the directory than the entries told")


def decoded(raw: bytes, flags: int) -> str:
    """A name as text: UTF-8 where the flag says so, else the code page that zips began with."""
    return raw.decode("utf-8" if flags & UTF8 else "cp437")


def unusual(flags: int) -> str:
    """What *flags* say that no wheel may; empty for none."""
    if flags & ENCRYPTED:
        return "encrypted"
    return f"flags {flags:#x} that mean nothing in a wheel" if flags & ~_PLAIN_FLAGS else ""


def extra_fields(data: bytes, name: str) -> dict[int, bytes]:
    """The extra fields of an entry by kind; up to three bytes of padding may end them.

    :raises Unreadable: one is cut, the sizes come twice, or another name stands there.
    """
    found: dict[int, bytes] = {}
    place = 0
    while len(data) - place >= 4:
        kind, length = struct.unpack_from("<2H", data, place)
        value = data[place + 4 : place + 4 + length]
        if len(value) != length or (kind == _ZIP64 and kind in found):
            raise Unreadable(f"entry {name!r}: its extra fields are broken")
        # Newer Pythons, and others, take the name from here.
        if kind == _UNICODE_PATH and value[5:] != name.encode():
            raise Unreadable(f"entry {name!r}: a second name, {value[5:]!r}")
        found[kind] = value
        place += 4 + length
    return found


def widened(values: tuple[int, ...], extra: dict[int, bytes], name: str) -> list[int]:
    """*values* with those that are all ones taken from the zip64 field, one after the other.

    :raises Unreadable: the field lacks one.
    """
    wide = extra.get(_ZIP64)
    found = []
    for value in values:
        if value == 0xFFFFFFFF:
            if wide is None or len(wide) < 8:
                raise Unreadable(f"entry {name!r}: its zip64 field lacks a value")
            (value,), wide = struct.unpack("<Q", wide[:8]), wide[8:]
        found.append(value)
    return found
