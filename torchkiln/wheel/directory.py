"""Reads the central directory of a zip strictly.

Zip readers tolerate different faults: two end records, two names, a wrong number of entries. A wheel must
have one meaning, so all of these are refused here; what this reader accepts, `zipfile`, and so pip, reads in
the same way. One reader for all versions of Python also keeps digests independent of the host's Python.
"""

from __future__ import annotations

import re
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from torchkiln.errors import BadWheel
from torchkiln.wheel.source import WheelFile

MAX_ENTRIES = 200_000  # torch has 11,000; limits memory
_MOST = 32 << 20  # bytes of the directory; torch's takes 1.4 MB
_LINE = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_MAX_COMMENT = 0xFFFF
_NEWEST = 63  # "version needed to extract": 6.3 is the latest
_ZIP64, _UNICODE_PATH = 0x0001, 0x7075
STORED, DEFLATED = 0, 8
UTF8, STREAMED, ENCRYPTED = 0x800, 0x8, 0x2041
_PLAIN_FLAGS = UTF8 | STREAMED | 0x6  # 0x6: the compression level


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelEntry:
    """One entry of the central directory; `mode` is the Unix mode, 0 if there is none."""

    name: str
    raw_name: bytes  # not decoded; the local header must have the same bytes
    offset: int  # of its local header
    compressed: int
    size: int
    crc: int
    method: int
    flags: int
    mode: int

    @property
    def deflated(self) -> bool:
        return self.method == DEFLATED

    @property
    def executable(self) -> bool:
        return stat.S_ISREG(self.mode) and bool(self.mode & 0o111)


class BadZip(Exception):
    """The zip is damaged, inconsistent or ambiguous; the text says how."""


def directory(wheel: WheelFile, filename: str) -> tuple[list[WheelEntry], int]:
    """The central directory of the wheel *filename*, in its own order, and its offset in the file.

    :raises BadWheel: it is missing, incomplete or ambiguous.
    """
    try:
        count, start, size = _end(wheel)
        if count > MAX_ENTRIES:
            raise BadWheel(
                filename,
                f"the central directory has {count} entries, {size} bytes; at most {MAX_ENTRIES} are allowed",
            )
        if size > _MOST:
            raise BadWheel(filename, f"the central directory has {size} bytes; at most {_MOST} are allowed")
        data = wheel.at(start, size)
        lines = list(_lines(data, count))
    except (BadZip, UnicodeDecodeError) as error:
        raise BadWheel(filename, f"bad zip file: {error}") from error
    return lines, start


def _end(wheel: WheelFile) -> tuple[int, int, int]:
    """The number of entries, offset and size of the central directory, from the end record."""
    length = min(wheel.size, _END.size + _MAX_COMMENT)
    tail = wheel.at(wheel.size - length, length)
    place = tail.rfind(b"PK\5\6")
    if place < 0 or len(tail) - place < _END.size:
        raise BadZip("end of central directory record not found: truncated, or not a zip file")
    if any(_fits(tail, found.start()) for found in re.finditer(rb"PK\x05\x06", tail[:place])):
        raise BadZip("two end of central directory records, both plausible")
    if not _fits(tail, place):
        raise BadZip("trailing data after the end of central directory record")
    _, disk, first_disk, here, count, size, offset, _ = _END.unpack_from(tail, place)
    position = wheel.size - length + place  # of the first byte after the directory
    before = position - _LOCATOR.size
    locator = wheel.at(before, _LOCATOR.size) if before >= 0 else b""
    if locator.startswith(b"PK\6\7"):
        short = (disk, first_disk, here, count, size, offset)
        position, (disk, first_disk, here, count, size, offset) = _end64(wheel, locator, before, short)
    if disk or first_disk or here != count:
        raise BadZip("multi-disk archive, or two different numbers of entries")
    if offset + size < position:
        raise BadZip("extra bytes before the first entry, or after the central directory")
    if offset + size > position:
        raise BadZip("the central directory is truncated or at a wrong offset")
    return count, offset, size


def _fits(tail: bytes, place: int) -> bool:
    """Whether the end record at *place* and its comment end at the end of the file."""
    if len(tail) - place < _END.size:
        return False
    comment = _END.unpack_from(tail, place)[-1]
    return bool(place + _END.size + comment == len(tail))


def _end64(
    wheel: WheelFile, locator: bytes, before: int, short: tuple[int, ...]
) -> tuple[int, tuple[int, ...]]:
    """The position of the zip64 end record, and its six values.

    :param before: the position of *locator*, which follows that record.
    :param short: the same six values in the end record, which has fewer bits for each; both must agree.
    """
    position = before - _END64.size
    data = wheel.at(position, _END64.size) if position >= 0 else b""
    if not data.startswith(b"PK\6\6"):
        raise BadZip("zip64 end of central directory record not found before its locator")
    _, length, _, _, *values = _END64.unpack(data)
    _, disk, offset, disks = _LOCATOR.unpack(locator)
    if length != _END64.size - 12 or disk or disks > 1 or offset != position:
        raise BadZip("zip64 end of central directory record and locator disagree")
    for narrow, wide, largest in zip(short, values, (0xFFFF,) * 4 + (0xFFFFFFFF,) * 2, strict=True):
        if narrow not in (wide, largest):
            raise BadZip("the two end of central directory records disagree")
    return position, tuple(values)


def _lines(data: bytes, count: int) -> Iterator[WheelEntry]:
    """The *count* entries of the central directory *data*, which must contain nothing else."""
    place = 0
    for _ in range(count):
        if len(data) - place < _LINE.size:
            raise BadZip("truncated central directory, or fewer entries than its end record says")
        signature, _, version, flags, method, _, _, *rest = _LINE.unpack_from(data, place)
        crc, compressed, size, name, extra, comment, disk, _, mode, at = rest
        place += _LINE.size
        if signature != b"PK\1\2" or len(data) - place < name + extra + comment:
            raise BadZip("bad magic number or length in the central directory")
        raw = data[place : place + name]
        text = decoded(raw, flags)
        fields_ = extra_fields(data[place + name : place + name + extra], text)
        place += name + extra + comment
        if version & 0xFF > _NEWEST or disk:
            raise BadZip(f"entry {text!r} needs zip version {(version & 0xFF) / 10}, or is on another disk")
        size, compressed, at = widened((size, compressed, at), fields_, text)
        yield WheelEntry(
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
        raise BadZip("more entries in the central directory than its end record says")


def decoded(raw: bytes, flags: int) -> str:
    """A name as text: UTF-8 if the flag is set, otherwise code page 437."""
    return raw.decode("utf-8" if flags & UTF8 or raw.isascii() else "cp437")


def unusual(flags: int) -> str:
    """Why an entry with *flags* is refused; empty if it is not."""
    if flags & ENCRYPTED:
        return "encrypted"
    return f"unsupported flags {flags:#x}" if flags & ~_PLAIN_FLAGS else ""


def extra_fields(data: bytes, name: str) -> dict[int, bytes]:
    """The extra fields of an entry by kind; up to three bytes of padding may end them.

    :raises BadZip: a field is truncated, the zip64 field occurs twice, or a field has another name of the
        entry.
    """
    found: dict[int, bytes] = {}
    place = 0
    while len(data) - place >= 4:
        kind, length = struct.unpack_from("<2H", data, place)
        value = data[place + 4 : place + 4 + length]
        if len(value) != length or (kind == _ZIP64 and kind in found):
            raise BadZip(f"entry {name!r}: corrupt extra field")
        # Newer versions of Python, and other readers, take the name from here.
        if kind == _UNICODE_PATH and value[5:] != name.encode():
            raise BadZip(f"entry {name!r}: has a second name in an extra field, {value[5:]!r}")
        found[kind] = value
        place += 4 + length
    return found


def widened(values: tuple[int, ...], extra: dict[int, bytes], name: str) -> list[int]:
    """*values*, in which the next value of the zip64 extra field replaces each 0xFFFFFFFF.

    :raises BadZip: the field lacks a value.
    """
    if 0xFFFFFFFF not in values:
        return list(values)
    wide = extra.get(_ZIP64)
    found = []
    for value in values:
        if value == 0xFFFFFFFF:
            if wide is None or len(wide) < 8:
                raise BadZip(f"entry {name!r}: corrupt zip64 extra field")
            (value,), wide = struct.unpack("<Q", wide[:8]), wide[8:]
        found.append(value)
    return found
