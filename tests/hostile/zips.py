"""The zip's own structure: sizes, offsets, headers, ends and comments that lie; cuts."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from pathlib import Path

from tests.hostile.making import CODE, INFO, Kind, cut, entries, field, local, rerecorded, stream, told, whole
from tests.rawzip import Raw, deflated, entry, read, write

SIZE = len(CODE) * 9  # of LIB


def _zip64(*values: int) -> bytes:
    return struct.pack(f"<2H{len(values)}Q", 1, 8 * len(values), *values)


def _overlap(raws: list[Raw]) -> list[Raw]:
    first, second, *rest = raws
    return [first, replace(second, told={"offset": 0}), *rest]


def _swapped(raws: list[Raw]) -> list[Raw]:
    """Two entries whose directory lines point at each other."""
    first, second, *rest = raws
    offset = 30 + len(first.name) + len(first.stream)
    return [replace(first, told={"offset": offset}), replace(second, told={"offset": 0}), *rest]


def _inside(raws: list[Raw]) -> list[Raw]:
    """An entry whose header stands in the stream of a stored one before it: a quine's first half."""
    hidden = entry("bad/hidden", b"hidden", stored=True)
    whole_one = write([hidden])[: 30 + len(hidden.name) + len(hidden.stream)]
    outer = entry("bad/outer", b"." * 8 + whole_one, stored=True)
    offset = 30 + len(outer.name) + 8
    return [outer, replace(hidden, told={"offset": offset}), *raws]


def _shifted(raws: list[Raw]) -> list[Raw]:
    """A header tells extra bytes that the directory cannot know of: its data end in the next one's header."""
    first, second, *rest = raws
    field_ = struct.pack("<2H", 0xCAFE, 34) + bytes(34)
    plain = entry("bad/plain", field_ + b"." * 62, stored=True)
    shifted = (plain.stream + write([first]))[38 : 38 + 100]
    return [replace(plain, crc=zlib.crc32(shifted), local={"extra_length": 38}), first, second, *rest]


def _two_ends(honest: Path) -> bytes:
    """A second directory, of other entries, in the comment of the first."""
    first = write(read(honest))
    other = write([entry("bad/evil.py", b"evil()\n")])
    return write(read(honest), comment=other[:-22] + first[-22:])


def _two_that_fit(honest: Path) -> bytes:
    """The comment of one end record is another end record."""
    data = write(read(honest))
    return data[:-2] + struct.pack("<H", 22) + data[-22:]


def _in_front(honest: Path) -> bytes:
    """A whole other wheel in front; the offsets count from where the second begins."""
    return write([entry("bad/evil.py", b"evil()\n")]) + honest.read_bytes()


def _with_nested(honest: Path) -> bytes:
    inner = honest.read_bytes()
    raws = read(honest)
    return write([entry("bad/inner.zip", inner, stored=True), *rerecorded(raws, {"bad/inner.zip": inner})])


_DISAGREE = "local header and central directory disagree"
_UNREADABLE = "bad zip file: "

ZIPS: dict[str, Kind] = {
    # one field against the other place
    "larger in the directory": Kind(told(size=SIZE + 1), _DISAGREE),
    "larger in its header": Kind(local(size=SIZE + 1), _DISAGREE),
    "larger everywhere": Kind(field(size=SIZE + 1), "bad CRC-32 or size"),
    "smaller everywhere": Kind(field(size=SIZE - 1), "inflates to more than its"),
    "stored, of two sizes": Kind(field("bad/stored.bin", size=299), "stored, but with two different sizes"),
    "stored, longer in its header": Kind(local("bad/stored.bin", size=301, compressed=301), _DISAGREE),
    "stream size too small": Kind(
        field(told={"compressed": 9}, local={"compressed": 9}), "unexpected end of its deflate stream"
    ),
    "stream size too large": Kind(told(compressed=1 << 30), "overlaps the central directory"),
    "stream of another length in its header": Kind(local(compressed=9), _DISAGREE),
    "crc in the directory": Kind(told(crc=1), _DISAGREE),
    "crc in its header": Kind(local(crc=1), _DISAGREE),
    "crc everywhere": Kind(field(crc=1), "bad CRC-32 or size"),
    "crc of stored": Kind(field("bad/stored.bin", crc=1), "bad CRC-32 or size"),
    "flags in the directory": Kind(told(flags=0), _DISAGREE),
    "flags in its header": Kind(local(flags=0x808), _DISAGREE),
    "method in the directory": Kind(told("bad/stored.bin", method=8), _DISAGREE),
    "method in its header": Kind(local("bad/stored.bin", method=8), _DISAGREE),
    "invalid header": Kind(local(signature=b"PK\3\5"), _DISAGREE),
    "extra field runs on": Kind(local(extra=b"\1\0\xff\0"), "corrupt extra field"),
    "extra field into the next entry": Kind(entries(_shifted), "overlaps the previous entry"),
    "stream runs on": Kind(
        field(f"{INFO}/RECORD", local={"extra_length": 5000}), "extends beyond the end of the file"
    ),
    "name runs on": Kind(local(name_length=5000), "extends beyond the end of the file"),
    "zip64 in its header lies": Kind(
        local(size=0xFFFFFFFF, compressed=0xFFFFFFFF, extra=_zip64(SIZE + 1, 9)), _DISAGREE
    ),
    "zip64 in its header lacks": Kind(local(size=0xFFFFFFFF), "corrupt zip64 extra field"),
    "zip64 lies": Kind(told(size=0xFFFFFFFF, extra=_zip64(SIZE + 1)), _DISAGREE),
    "zip64 lacks": Kind(told(size=0xFFFFFFFF), f"{_UNREADABLE}.*corrupt zip64 extra field"),
    "zip64 cut": Kind(
        told(size=0xFFFFFFFF, extra=b"\1\0\4\0abcd"), f"{_UNREADABLE}.*corrupt zip64 extra field"
    ),
    "zip64 offset behind the end": Kind(
        told(offset=0xFFFFFFFF, extra=_zip64(1 << 50)), "overlaps the central directory"
    ),
    "zip64 size beyond all": Kind(told(size=0xFFFFFFFF, extra=_zip64((1 << 64) - 1)), "unpacks to|disagree"),
    "zip64 twice": Kind(told(extra=_zip64(1) + _zip64(2)), f"{_UNREADABLE}.*corrupt extra field"),
    "extra field cut": Kind(told(extra=b"\1\0\xff\0"), f"{_UNREADABLE}.*corrupt extra field"),
    # methods and flags
    "encrypted": Kind(field(flags=0x801), "encrypted"),
    "encrypted, strongly": Kind(field(flags=0x841), "encrypted"),
    "headers hidden": Kind(field(flags=0x2800), "encrypted"),
    "patch": Kind(field(flags=0x820), "unsupported flags 0x820"),
    "flags of the future": Kind(field(flags=0x8800), "unsupported flags 0x8800"),
    "deflate64": Kind(field(method=9), "compression method 9"),
    "bzip2": Kind(field(method=12), "compression method 12"),
    "lzma": Kind(field(method=14), "compression method 14"),
    "zstandard": Kind(field(method=93), "compression method 93"),
    "no such method": Kind(field(method=99), "compression method 99"),
    "version of the future": Kind(told(version=64), f"{_UNREADABLE}.*needs zip version"),
    "on another disk": Kind(told(disk=1), f"{_UNREADABLE}.*on another disk"),
    # offsets
    "offset off by one": Kind(told("bad/stored.bin", offset=1), "overlaps|disagree"),
    "offset behind the end": Kind(told(offset=1 << 30), "overlaps the central directory"),
    "overlap": Kind(entries(_overlap), "overlaps the previous entry"),
    "one entry inside another": Kind(entries(_inside), "overlaps the previous entry"),
    "swapped": Kind(entries(_swapped), "overlaps|disagree"),
    "front": Kind(whole(front=b"#!/bin/sh\nexit 1\n"), "before the first entry"),
    "front, offsets old": Kind(lambda honest: b"MZ" + honest.read_bytes(), "before the first entry"),
    "another wheel in front": Kind(_in_front, "before the first entry"),
    "gap behind the directory": Kind(whole(end={"size": 0}), f"{_UNREADABLE}"),
    # the end
    "entry count too large": Kind(
        whole(end={"here": 7, "count": 7}), "fewer entries than its end record says"
    ),
    "entry count too small": Kind(
        whole(end={"here": 5, "count": 5}), "more entries in the central directory than"
    ),
    "two counts": Kind(whole(end={"here": 5}), "two different numbers of entries"),
    "disk in the end": Kind(whole(end={"disk": 1, "first": 1}), "multi-disk archive"),
    "directory's size": Kind(whole(end={"size": 1 << 30}), "at a wrong offset"),
    "directory's offset": Kind(whole(end={"offset": 1 << 31}), "at a wrong offset"),
    "bytes behind": Kind(whole(behind=b"\0"), "trailing data after the end of central directory record"),
    "many bytes behind": Kind(whole(behind=bytes(70_000)), "end of central directory record not found"),
    "comment cut": Kind(whole(end={"comment": 9}), "trailing data after the end of central directory record"),
    "comment runs on": Kind(
        whole(comment=b"abc", end={"comment": 2}), "trailing data after the end of central directory record"
    ),
    "two directories": Kind(_two_ends, "two end of central directory records"),
    "two ends that fit": Kind(_two_that_fit, "two end of central directory records"),
    "end in the comment": Kind(whole(comment=b"PK\5\6" + bytes(40)), "two end|trailing data after"),
    "zip64 end: offset": Kind(whole(end64={"offset": 1}), _UNREADABLE),
    "zip64 end: count": Kind(whole(end64={"count": 1 << 40, "here": 1 << 40}), "entries, .* bytes; at most"),
    "zip64 end: length": Kind(whole(end64={"length": 99}), "locator disagree"),
    "zip64 end: place": Kind(whole(end64={"at": 0}), "locator disagree"),
    "zip64 end: disks": Kind(whole(end64={"disks": 2}), "locator disagree"),
    "zip64 end: against the short one": Kind(
        whole(end64={}, end={"here": 5, "count": 5}), "two end of central directory records disagree"
    ),
    "zip64 end missing": Kind(
        whole(gap=b"", end64={"length": 44}, end={"offset": 0}),
        "two end of central directory records disagree",
    ),
    # cuts
    "empty": cut(lambda _: 0),
    "cut in the first header": cut(lambda _: 20),
    "cut in a stream": cut(lambda _: 60),
    "cut before the directory": cut(lambda data: data.index(b"PK\1\2")),
    "cut in the directory": cut(lambda data: data.index(b"PK\1\2") + 50),
    "cut before its end": cut(lambda data: data.rindex(b"PK\5\6")),
    "cut in its end": cut(lambda data: len(data) - 1),
    "only an end": Kind(lambda _: write([]), "0 .dist-info directories"),
    "no zip": Kind(lambda _: b"<html>404</html>" * 99, _UNREADABLE),
    "directory's line cut": Kind(
        told("bad-1.0.dist-info/RECORD", name_length=900),
        f"{_UNREADABLE}bad magic number or length in the central directory",
    ),
    "directory's line is none": Kind(told(signature=b"PK\1\3"), f"{_UNREADABLE}bad magic number or length"),
    # streams
    "stream cut": Kind(stream(lambda found: found[:-3]), "unexpected end of its deflate stream"),
    "stream empty": Kind(stream(lambda _: b""), "unexpected end of its deflate stream"),
    "stream broken": Kind(stream(lambda found: b"\xff" + found[1:]), "invalid compressed data"),
    "stream of zlib": Kind(
        stream(lambda found: b"\x78\x9c" + found + b"abcd"), "invalid compressed data|inflates|unexpected end"
    ),
    "another stream": Kind(stream(lambda _: deflated(b"x" * SIZE)), "bad CRC-32 or size"),
    # taken, as pip takes them
    "comment": Kind(whole(comment=b"nothing to see")),
    "comment of an entry": Kind(told(comment=b"PK\1\2")),
    "gap between entries": Kind(field(gap=b"PK\3\4 neither")),
    "gap before the directory": Kind(whole(gap=b"gap")),
    "zip64 end": Kind(whole(end64={})),
    "zip64 fields": Kind(
        field(
            told={"size": 0xFFFFFFFF, "extra": _zip64(SIZE)},
            local={"size": 0xFFFFFFFF, "extra": _zip64(SIZE)},
        )
    ),
    "zip64 field that is not needed": Kind(told(extra=_zip64(1, 2, 3))),
    "extra field of no meaning": Kind(told(extra=b"\xca\xfe\2\0hi")),
    "extra field's padding": Kind(told(extra=b"\0\0\0")),
    "descriptor that lies": Kind(
        field(
            flags=0x808,
            local={"crc": 0, "size": 0, "compressed": 0},
            descriptor=struct.pack("<4s3L", b"PK\7\10", 1, 2, 3),
        )
    ),
    "descriptor missing": Kind(field(flags=0x808, local={"crc": 0, "size": 0, "compressed": 0})),
    "nested zip": Kind(_with_nested),
    "header's version": Kind(local(version=99)),
}
