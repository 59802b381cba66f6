"""Faulty zip structures: false sizes, offsets, headers, end records and comments; truncation."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from pathlib import Path

from tests.hostile.making import (
    CODE,
    INFO,
    Kind,
    central,
    cut,
    entries,
    field,
    local,
    rewritten,
    stream,
    with_new_record,
)
from tests.rawzip import Raw, deflated, entry, read, write

SIZE = len(CODE) * 9  # of LIB


def _zip64(*values: int) -> bytes:
    return struct.pack(f"<2H{len(values)}Q", 1, 8 * len(values), *values)


def _overlap(raws: list[Raw]) -> list[Raw]:
    first, second, *rest = raws
    return [first, replace(second, central={"offset": 0}), *rest]


def _swapped(raws: list[Raw]) -> list[Raw]:
    """Two entries; the directory entry of each has the offset of the other."""
    first, second, *rest = raws
    offset = 30 + len(first.name) + len(first.stream)
    return [replace(first, central={"offset": offset}), replace(second, central={"offset": 0}), *rest]


def _inside(raws: list[Raw]) -> list[Raw]:
    """An entry whose header is inside the stream of an earlier stored entry, as in a quine."""
    hidden = entry("bad/hidden", b"hidden", stored=True)
    hidden_entry = write([hidden])[: 30 + len(hidden.name) + len(hidden.stream)]
    outer = entry("bad/outer", b"." * 8 + hidden_entry, stored=True)
    offset = 30 + len(outer.name) + 8
    return [outer, replace(hidden, central={"offset": offset}), *raws]


def _shifted(raws: list[Raw]) -> list[Raw]:
    """A local header with an extra field that the directory lacks, so the data end in the next header."""
    first, second, *rest = raws
    field_ = struct.pack("<2H", 0xCAFE, 34) + bytes(34)
    plain = entry("bad/plain", field_ + b"." * 62, stored=True)
    shifted = (plain.stream + write([first]))[38 : 38 + 100]
    return [replace(plain, crc=zlib.crc32(shifted), local={"extra_length": 38}), first, second, *rest]


def _two_ends(valid: Path) -> bytes:
    """A second central directory with other entries, inside the comment of the first."""
    first = write(read(valid))
    inner = write([entry("bad/evil.py", b"evil()\n")])
    return write(read(valid), comment=inner[:-22] + first[-22:])


def _two_valid_ends(valid: Path) -> bytes:
    """An end record whose comment is another end record."""
    data = write(read(valid))
    return data[:-2] + struct.pack("<H", 22) + data[-22:]


def _in_front(valid: Path) -> bytes:
    """A complete zip before the wheel; the offsets are relative to the start of the wheel."""
    return write([entry("bad/evil.py", b"evil()\n")]) + valid.read_bytes()


def _with_nested(valid: Path) -> bytes:
    inner = valid.read_bytes()
    raws = read(valid)
    return write(
        [entry("bad/inner.zip", inner, stored=True), *with_new_record(raws, {"bad/inner.zip": inner})]
    )


_DISAGREE = "local header and central directory disagree"
_UNREADABLE = "bad zip file: "

ZIPS: dict[str, Kind] = {
    # fields in which the two headers differ
    "size too large in the central directory": Kind(central(size=SIZE + 1), _DISAGREE),
    "size too large in the local header": Kind(local(size=SIZE + 1), _DISAGREE),
    "size too large in both headers": Kind(field(size=SIZE + 1), "bad CRC-32 or size"),
    "size too small in both headers": Kind(field(size=SIZE - 1), "inflates to more than its"),
    "stored, two different sizes": Kind(
        field("bad/stored.bin", size=299), "stored, but with two different sizes"
    ),
    "stored, size too large in the local header": Kind(
        local("bad/stored.bin", size=301, compressed=301), _DISAGREE
    ),
    "compressed size too small": Kind(
        field(central={"compressed": 9}, local={"compressed": 9}), "unexpected end of its deflate stream"
    ),
    "compressed size too large": Kind(central(compressed=1 << 30), "overlaps the central directory"),
    "different compressed size in the local header": Kind(local(compressed=9), _DISAGREE),
    "wrong CRC in the central directory": Kind(central(crc=1), _DISAGREE),
    "wrong CRC in the local header": Kind(local(crc=1), _DISAGREE),
    "wrong CRC in both headers": Kind(field(crc=1), "bad CRC-32 or size"),
    "stored, wrong CRC in both headers": Kind(field("bad/stored.bin", crc=1), "bad CRC-32 or size"),
    "different flags in the central directory": Kind(central(flags=0), _DISAGREE),
    "different flags in the local header": Kind(local(flags=0x808), _DISAGREE),
    "different method in the central directory": Kind(central("bad/stored.bin", method=8), _DISAGREE),
    "different method in the local header": Kind(local("bad/stored.bin", method=8), _DISAGREE),
    "invalid local header": Kind(local(signature=b"PK\3\5"), _DISAGREE),
    "extra field longer than its length": Kind(local(extra=b"\1\0\xff\0"), "corrupt extra field"),
    "extra field extends into the next entry": Kind(entries(_shifted), "overlaps the previous entry"),
    "stream extends beyond the end of the file": Kind(
        field(f"{INFO}/RECORD", local={"extra_length": 5000}), "extends beyond the end of the file"
    ),
    "name extends beyond the end of the file": Kind(
        local(name_length=5000), "extends beyond the end of the file"
    ),
    "wrong zip64 size in the local header": Kind(
        local(size=0xFFFFFFFF, compressed=0xFFFFFFFF, extra=_zip64(SIZE + 1, 9)), _DISAGREE
    ),
    "missing zip64 field in the local header": Kind(local(size=0xFFFFFFFF), "corrupt zip64 extra field"),
    "wrong zip64 size": Kind(central(size=0xFFFFFFFF, extra=_zip64(SIZE + 1)), _DISAGREE),
    "missing zip64 field": Kind(central(size=0xFFFFFFFF), f"{_UNREADABLE}.*corrupt zip64 extra field"),
    "truncated zip64 field": Kind(
        central(size=0xFFFFFFFF, extra=b"\1\0\4\0abcd"), f"{_UNREADABLE}.*corrupt zip64 extra field"
    ),
    "zip64 offset beyond the end": Kind(
        central(offset=0xFFFFFFFF, extra=_zip64(1 << 50)), "overlaps the central directory"
    ),
    "zip64 size of 16 EiB": Kind(
        central(size=0xFFFFFFFF, extra=_zip64((1 << 64) - 1)), "unpacks to|disagree"
    ),
    "two zip64 fields": Kind(central(extra=_zip64(1) + _zip64(2)), f"{_UNREADABLE}.*corrupt extra field"),
    "truncated extra field": Kind(central(extra=b"\1\0\xff\0"), f"{_UNREADABLE}.*corrupt extra field"),
    # methods and flags
    "encrypted": Kind(field(flags=0x801), "encrypted"),
    "strong encryption": Kind(field(flags=0x841), "encrypted"),
    "encrypted central directory": Kind(field(flags=0x2800), "encrypted"),
    "patch": Kind(field(flags=0x820), "unsupported flags 0x820"),
    "reserved flags": Kind(field(flags=0x8800), "unsupported flags 0x8800"),
    "deflate64": Kind(field(method=9), "compression method 9"),
    "bzip2": Kind(field(method=12), "compression method 12"),
    "lzma": Kind(field(method=14), "compression method 14"),
    "zstandard": Kind(field(method=93), "compression method 93"),
    "unknown compression method": Kind(field(method=99), "compression method 99"),
    "newer zip version": Kind(central(version=64), f"{_UNREADABLE}.*needs zip version"),
    "on another disk": Kind(central(disk=1), f"{_UNREADABLE}.*on another disk"),
    # offsets
    "offset off by one": Kind(central("bad/stored.bin", offset=1), "overlaps|disagree"),
    "offset beyond the end": Kind(central(offset=1 << 30), "overlaps the central directory"),
    "overlap": Kind(entries(_overlap), "overlaps the previous entry"),
    "one entry inside another": Kind(entries(_inside), "overlaps the previous entry"),
    "swapped entries": Kind(entries(_swapped), "overlaps|disagree"),
    "leading data": Kind(rewritten(front=b"#!/bin/sh\nexit 1\n"), "before the first entry"),
    "leading data, offsets unchanged": Kind(
        lambda valid: b"MZ" + valid.read_bytes(), "before the first entry"
    ),
    "leading wheel": Kind(_in_front, "before the first entry"),
    "gap after the central directory": Kind(rewritten(end={"size": 0}), f"{_UNREADABLE}"),
    # the end
    "entry count too large": Kind(
        rewritten(end={"here": 7, "count": 7}), "fewer entries than its end record says"
    ),
    "entry count too small": Kind(
        rewritten(end={"here": 5, "count": 5}), "more entries in the central directory than"
    ),
    "two different entry counts": Kind(rewritten(end={"here": 5}), "two different numbers of entries"),
    "disk number in the end record": Kind(rewritten(end={"disk": 1, "first": 1}), "multi-disk archive"),
    "wrong size of the central directory": Kind(rewritten(end={"size": 1 << 30}), "at a wrong offset"),
    "wrong offset of the central directory": Kind(rewritten(end={"offset": 1 << 31}), "at a wrong offset"),
    "trailing byte": Kind(rewritten(behind=b"\0"), "trailing data after the end of central directory record"),
    "many trailing bytes": Kind(rewritten(behind=bytes(70_000)), "end of central directory record not found"),
    "comment shorter than its length": Kind(
        rewritten(end={"comment": 9}), "trailing data after the end of central directory record"
    ),
    "comment longer than its length": Kind(
        rewritten(comment=b"abc", end={"comment": 2}),
        "trailing data after the end of central directory record",
    ),
    "two central directories": Kind(_two_ends, "two end of central directory records"),
    "two valid end records": Kind(_two_valid_ends, "two end of central directory records"),
    "end record in the comment": Kind(
        rewritten(comment=b"PK\5\6" + bytes(40)), "two end|trailing data after"
    ),
    "zip64 end: offset": Kind(rewritten(end64={"offset": 1}), _UNREADABLE),
    "zip64 end: count": Kind(
        rewritten(end64={"count": 1 << 40, "here": 1 << 40}), "entries, .* bytes; at most"
    ),
    "zip64 end: length": Kind(rewritten(end64={"length": 99}), "locator disagree"),
    "zip64 end: position": Kind(rewritten(end64={"at": 0}), "locator disagree"),
    "zip64 end: disks": Kind(rewritten(end64={"disks": 2}), "locator disagree"),
    "zip64 end: other counts than in the end record": Kind(
        rewritten(end64={}, end={"here": 5, "count": 5}), "two end of central directory records disagree"
    ),
    "zip64 end missing": Kind(
        rewritten(gap=b"", end64={"length": 44}, end={"offset": 0}),
        "two end of central directory records disagree",
    ),
    # cuts
    "empty": cut(lambda _: 0),
    "truncated in the first header": cut(lambda _: 20),
    "truncated in a stream": cut(lambda _: 60),
    "truncated before the central directory": cut(lambda data: data.index(b"PK\1\2")),
    "truncated in the central directory": cut(lambda data: data.index(b"PK\1\2") + 50),
    "truncated before the end record": cut(lambda data: data.rindex(b"PK\5\6")),
    "truncated in the end record": cut(lambda data: len(data) - 1),
    "only an end record": Kind(lambda _: write([]), "0 .dist-info directories"),
    "not a zip file": Kind(lambda _: b"<html>404</html>" * 99, _UNREADABLE),
    "truncated entry of the central directory": Kind(
        central("bad-1.0.dist-info/RECORD", name_length=900),
        f"{_UNREADABLE}bad magic number or length in the central directory",
    ),
    "invalid entry of the central directory": Kind(
        central(signature=b"PK\1\3"), f"{_UNREADABLE}bad magic number or length"
    ),
    # streams
    "truncated stream": Kind(stream(lambda found: found[:-3]), "unexpected end of its deflate stream"),
    "empty stream": Kind(stream(lambda _: b""), "unexpected end of its deflate stream"),
    "corrupt stream": Kind(stream(lambda found: b"\xff" + found[1:]), "invalid compressed data"),
    "zlib stream": Kind(
        stream(lambda found: b"\x78\x9c" + found + b"abcd"), "invalid compressed data|inflates|unexpected end"
    ),
    "stream of other data": Kind(stream(lambda _: deflated(b"x" * SIZE)), "bad CRC-32 or size"),
    # accepted, as by pip
    "comment": Kind(rewritten(comment=b"nothing to see")),
    "comment of an entry": Kind(central(comment=b"PK\1\2")),
    "gap between entries": Kind(field(gap=b"PK\3\4 neither")),
    "gap before the directory": Kind(rewritten(gap=b"gap")),
    "zip64 end": Kind(rewritten(end64={})),
    "zip64 fields": Kind(
        field(
            central={"size": 0xFFFFFFFF, "extra": _zip64(SIZE)},
            local={"size": 0xFFFFFFFF, "extra": _zip64(SIZE)},
        )
    ),
    "zip64 field that is not needed": Kind(central(extra=_zip64(1, 2, 3))),
    "unknown extra field": Kind(central(extra=b"\xca\xfe\2\0hi")),
    "padding in an extra field": Kind(central(extra=b"\0\0\0")),
    "wrong data descriptor": Kind(
        field(
            flags=0x808,
            local={"crc": 0, "size": 0, "compressed": 0},
            descriptor=struct.pack("<4s3L", b"PK\7\10", 1, 2, 3),
        )
    ),
    "missing data descriptor": Kind(field(flags=0x808, local={"crc": 0, "size": 0, "compressed": 0})),
    "nested zip": Kind(_with_nested),
    "different version in the local header": Kind(local(version=99)),
}
