"""Forty and more ways in which a wheel is not as it must be, each with the reason that is told for it."""

from __future__ import annotations

import gzip
import stat
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.rawzip import Raw, changed, deflated, edited, entry, read, write
from tests.wheels import File, WheelSpec, write_wheel

CODE = b"def main():\n    return 0\n" * 20
INFO = "bad-1.0.dist-info"
SPEC = WheelSpec(
    name="bad",
    files=(
        File(path="bad/__init__.py", data=CODE),
        File(path="bad/stored.bin", data=b"stored" * 50, stored=True),
        File(path="bad/lib.so", data=CODE * 9, mode=0o755),
    ),
)

Make = Callable[[Path], bytes]  # given the honest wheel, the bad one's bytes


@dataclass(frozen=True)
class Bad:
    """One kind: how it is made of the honest wheel, and a regular expression for the reason."""

    make: Make
    reason: str


def _with(file: File) -> Make:
    def make(honest: Path) -> bytes:
        return write_wheel(replace(SPEC, files=(*SPEC.files, file)), honest.parent / "spec").read_bytes()

    return make


def _named(name: str) -> Bad:
    return Bad(
        _with(File(path=name, data=b"x")), "entry .*: (an absolute path|a path that is not plain|control)"
    )


def _field(of: str, **fields: object) -> Make:
    return lambda honest: changed(honest, of, **fields)


def _mode(kind: int) -> Bad:
    return Bad(_field("bad/lib.so", mode=kind | 0o644), "entry 'bad/lib.so': neither a file nor a folder")


def _info(name: str, data: bytes) -> Make:
    """One metadata file with other content; where it is not RECORD, RECORD tells the truth of it."""
    if name == "RECORD":
        return lambda honest: edited(honest, f"{INFO}/RECORD", lambda raw: entry(raw.name.decode(), data))
    return _with(File(path=f"{INFO}/{name}", data=data))


def _spec(**fields: object) -> Make:
    return lambda honest: write_wheel(replace(SPEC, **fields), honest.parent / "spec").read_bytes()  # type: ignore[arg-type]


def _metadata(old: bytes, new: bytes, name: str) -> Make:
    """METADATA or WHEEL with *new* for *old*; RECORD is not consulted before it is read."""

    def edit(raw: Raw) -> Raw:
        text = zlib.decompress(raw.stream, -15)
        assert old in text
        return entry(raw.name.decode(), text.replace(old, new))

    return lambda honest: edited(honest, f"{INFO}/{name}", edit)


def _record(edit: Callable[[list[str]], list[str]]) -> Make:
    def make(honest: Path) -> bytes:
        def of(raw: Raw) -> Raw:
            lines = zlib.decompress(raw.stream, -15).decode().splitlines()
            return entry(raw.name.decode(), "\n".join([*edit(lines), ""]).encode())

        return edited(honest, f"{INFO}/RECORD", of)

    return make


def _cut(where: Callable[[bytes], int]) -> Bad:
    def make(honest: Path) -> bytes:
        data = honest.read_bytes()
        return data[: where(data)]

    return Bad(make, "not a readable zip|sha256 is")


def _twice(honest: Path) -> bytes:
    return write([*(found := read(honest)), found[0]])


def _overlap(honest: Path) -> bytes:
    first, second, *rest = read(honest)
    return write([first, replace(second, told_offset=0), *rest])


def _swapped(honest: Path) -> bytes:
    """Two entries whose directory lines point at each other."""
    first, second, *rest = read(honest)
    offset = 30 + len(first.name) + len(first.stream)
    return write([replace(first, told_offset=offset), replace(second, told_offset=0), *rest])


SMUGGLED = gzip.compress(b"smuggled", mtime=0)


def _stream(edit: Callable[[bytes], bytes], name: str = "bad/lib.so") -> Make:
    return lambda honest: edited(honest, name, lambda raw: replace(raw, stream=edit(raw.stream)))


def _points(line: str) -> Bad:
    return Bad(_info("entry_points.txt", f"[console_scripts]\n{line}\n".encode()), "entry point|no entry")


def _bomb(honest: Path) -> bytes:
    return changed(honest, "bad/lib.so", stream=deflated(bytes(64 << 20)))


def _large_metadata(honest: Path) -> bytes:
    return changed(honest, f"{INFO}/METADATA", size=65 << 20)


KINDS: dict[str, Bad] = {
    # names
    "traversal": _named("../evil.py"),
    "traversal deep": _named("bad/../../../../etc/passwd"),
    "traversal in data": Bad(
        _with(File(path="../../evil", data=b"x", scheme="data")), "a path that is not plain"
    ),
    "traversal in scripts": Bad(
        _with(File(path="../x", data=b"x", scheme="scripts")), "a path that is not plain"
    ),
    "absolute": _named("/etc/passwd"),
    "drive": _named("C:/x.py"),
    "drive, relative": _named("c:x.py"),
    "backslash": _named("bad\\..\\x.py"),
    "dot": _named("bad/./x.py"),
    "empty part": _named("bad//x.py"),
    "tab": _named("bad/a\tb.py"),
    "newline": _named("bad/a\nb.py"),
    "delete": _named("bad/a\x7fb.py"),
    "escape": _named("bad/\x1b[2J.py"),
    "nul": Bad(_field("bad/lib.so", name=b"bad/l\0b.so", local_name=b"bad/l\0b.so"), "control characters"),
    "not utf-8": Bad(
        _field("bad/lib.so", name=b"bad/\xff.so", local_name=b"bad/\xff.so"), "not a readable zip"
    ),
    "whiteout": Bad(_with(File(path="bad/.wh.lib.so", data=b"")), r"layers use to delete files \(.wh.\)"),
    "opaque": Bad(_with(File(path="bad/.wh..wh..opq", data=b"")), "layers use to delete"),
    "whiteout folder": Bad(_with(File(path=".wh.bad/x", data=b"")), "layers use to delete"),
    "long part": Bad(_with(File(path="bad/" + "é" * 128, data=b"")), "too long"),
    "long path": Bad(_with(File(path="/".join(["d" * 99] * 41), data=b"")), "too long"),
    "another name in its header": Bad(
        _field("bad/lib.so", local_name=b"bad/lib.sO"), "header and the directory disagree"
    ),
    # kinds
    "symlink": _mode(stat.S_IFLNK),
    "character device": _mode(stat.S_IFCHR),
    "block device": _mode(stat.S_IFBLK),
    "pipe": _mode(stat.S_IFIFO),
    "socket": _mode(stat.S_IFSOCK),
    "encrypted": Bad(_field("bad/lib.so", flags=0x801), "encrypted"),
    "bzip2": Bad(_field("bad/lib.so", method=12), "compression method 12"),
    "no such method": Bad(_field("bad/lib.so", method=99), "compression method 99"),
    # places
    "twice": Bad(_twice, "entry 'bad/__init__.py' occurs twice"),
    "file and folder": Bad(_with(File(path="bad/lib.so/x", data=b"")), "'bad/lib.so' is a file and a folder"),
    "file over folder, by data": Bad(
        _with(File(path="bad/lib.so/x", data=b"", scheme="platlib")), "a different file at .*bad/lib.so"
    ),
    "two files, by data": Bad(
        _with(File(path="bad/lib.so", data=b"2", scheme="purelib")), "a different file at .*bad/lib.so"
    ),
    "no such scheme": Bad(
        lambda honest: write([*read(honest), entry("bad-1.0.data/nowhere/x", b"x")]), "no such data scheme"
    ),
    # sizes, CRCs, offsets
    "larger in the directory": Bad(_field("bad/lib.so", told_size=len(CODE) * 9 + 1), "disagree"),
    "larger everywhere": Bad(_field("bad/lib.so", size=len(CODE) * 9 + 1), "size or CRC-32"),
    "smaller everywhere": Bad(_field("bad/lib.so", size=len(CODE) * 9 - 1), "inflates to more than its"),
    "stored, of two sizes": Bad(_field("bad/stored.bin", size=299), "stored, but of two sizes"),
    "stream told shorter": Bad(_field("bad/lib.so", told_compressed=9), "does not end"),
    "stream told longer": Bad(_field("bad/lib.so", told_compressed=1 << 30), "reaches into the directory"),
    "crc in the directory": Bad(_field("bad/lib.so", told_crc=1), "disagree"),
    "crc everywhere": Bad(_field("bad/lib.so", crc=1), "size or CRC-32 is not"),
    "crc of stored": Bad(_field("bad/stored.bin", crc=1), "size or CRC-32 is not"),
    "flags": Bad(_field("bad/lib.so", told_flags=0), "disagree"),
    "offset off by one": Bad(_field("bad/stored.bin", told_offset=1), "overlaps|disagree"),
    "offset behind the end": Bad(_field("bad/lib.so", told_offset=1 << 30), "reaches into the directory"),
    "overlap": Bad(_overlap, "overlaps the one before it"),
    "swapped": Bad(_swapped, "overlaps|disagree"),
    "front": Bad(lambda honest: write(read(honest), front=b"#!/bin/sh\nexit 1\n"), "before the first entry"),
    "front, offsets old": Bad(lambda honest: b"MZ" + honest.read_bytes(), "before the first entry"),
    # truncated
    "empty": _cut(lambda _: 0),
    "cut in the first header": _cut(lambda _: 20),
    "cut in a stream": _cut(lambda _: 60),
    "cut before the directory": _cut(lambda data: data.index(b"PK\1\2")),
    "cut in the directory": _cut(lambda data: data.index(b"PK\1\2") + 50),
    "cut before its end": _cut(lambda data: data.rindex(b"PK\5\6")),
    "cut in its end": _cut(lambda data: len(data) - 1),
    "only an end": Bad(lambda _: write([]), "0 .dist-info folders"),
    "no zip": Bad(lambda _: b"<html>404</html>" * 99, "not a readable zip"),
    # streams
    "smuggled member": Bad(
        _stream(lambda stream: stream + SMUGGLED), "bytes behind the end of its deflate stream"
    ),
    "smuggled far behind": Bad(
        _stream(lambda s: s + bytes(300_000) + SMUGGLED), "bytes behind the end of its deflate"
    ),
    "smuggled behind nothing": Bad(
        lambda h: write([*read(h), replace(entry("bad/e", b""), stream=deflated(b"") + SMUGGLED)]),
        "behind the end",
    ),
    "stream cut": Bad(_stream(lambda stream: stream[:-3]), "does not end"),
    "stream empty": Bad(_stream(lambda _: b""), "does not end"),
    "stream broken": Bad(_stream(lambda stream: b"\xff" + stream[1:]), "broken deflate stream"),
    "bomb": Bad(_bomb, "inflates to more than its"),
    "huge metadata": Bad(_large_metadata, "METADATA' is 68157440 bytes"),
    # RECORD
    "record lies on a hash": Bad(
        _record(
            lambda lines: [
                line.replace("sha256=", "sha256=A", 1) if "lib.so" in line else line for line in lines
            ]
        ),
        "'bad/lib.so' is not what RECORD says",
    ),
    "record lies on a size": Bad(
        _record(lambda lines: [line + "0" if "lib.so" in line else line for line in lines]),
        "'bad/lib.so' has no hash in RECORD, or another size",
    ),
    "record lacks a file": Bad(
        _record(lambda lines: [line for line in lines if "lib.so" not in line]),
        "'bad/lib.so' is not in RECORD",
    ),
    "record lacks a hash": Bad(
        _record(lambda lines: ["bad/lib.so,," if "lib.so" in line else line for line in lines]),
        "has no hash in RECORD",
    ),
    "record lacks nearly all": Bad(_record(lambda _: []), r"not in RECORD; .* \(and 2 more\)"),
    "record twice": Bad(
        _record(lambda lines: [*lines, "bad/lib.so,sha256=x,1"]), "RECORD tells 'bad/lib.so' twice"
    ),
    "record is no text": Bad(_info("RECORD", b"\xff\xfe"), "RECORD cannot be read"),
    "no record": Bad(lambda honest: edited(honest, f"{INFO}/RECORD", lambda _: None), "RECORD is missing"),
    # metadata
    "no metadata": Bad(
        lambda honest: edited(honest, f"{INFO}/METADATA", lambda _: None), "METADATA is missing"
    ),
    "no wheel file": Bad(lambda honest: edited(honest, f"{INFO}/WHEEL", lambda _: None), "WHEEL is missing"),
    "another project": Bad(
        _metadata(b"Name: bad", b"Name: good", "METADATA"), "METADATA is that of good 1.0"
    ),
    "another version": Bad(
        _metadata(b"Version: 1.0\n", b"Version: 1.1\n", "METADATA"), "METADATA is that of bad 1.1"
    ),
    "no version": Bad(_metadata(b"\nVersion: 1.0\n", b"\n", "METADATA"), "METADATA is that of bad"),
    "format 2": Bad(
        _metadata(b"Wheel-Version: 1.0", b"Wheel-Version: 2.0", "WHEEL"), "Wheel-Version 2.0; only 1.x"
    ),
    "another project's folder": Bad(_spec(name="other"), "its metadata folder is other-1.0.dist-info"),
    "two metadata folders": Bad(
        _with(File(path="more-1.0.dist-info/METADATA", data=b"")), "2 .dist-info folders"
    ),
    "no metadata folder": Bad(lambda _: write([entry("bad/__init__.py", CODE)]), "0 .dist-info folders"),
    # entry points
    "point with code": _points("run = bad:main();import os"),
    "point with shell": _points("$(id) = bad:main"),
    "point with a path": _points("../../usr/bin/env = bad:main"),
    "point, absolute": _points("/bin/sh = bad:main"),
    "point with two lines": _points("run = bad:main\rimport os"),
    "point without attribute": _points("run = bad"),
    "point hidden": _points(".bashrc = bad:main"),
    "points not utf-8": Bad(
        _info("entry_points.txt", b"[console_scripts]\n\xff = bad:main\n"), "is not UTF-8"
    ),
    "point over a large script": Bad(
        _spec(
            files=(*SPEC.files, File(path="run", data=bytes(1_100_000), scheme="scripts")),
            console=(("run", "bad:main"),),
        ),
        "a script and an entry point are both",
    ),
}
