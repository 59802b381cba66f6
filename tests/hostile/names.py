"""Faulty names and kinds of entries: path traversal, hidden or colliding names, special files."""

from __future__ import annotations

import stat
import struct
import zlib
from dataclasses import replace

from tests.hostile.making import (
    LIB,
    SPEC,
    Kind,
    central,
    entries,
    local,
    mode,
    named,
    raw_named,
    with_file,
    with_spec,
)
from tests.rawzip import entry
from tests.wheels import File


def unicode_path(name: bytes, of: bytes = LIB.encode()) -> bytes:
    """The extra field "Unicode path" of zip, which gives the entry *of* another name."""
    return struct.pack("<2HBL", 0x7075, 5 + len(name), 1, zlib.crc32(of)) + name


NAMES: dict[str, Kind] = {
    "traversal": named("../evil.py"),
    "traversal deep": named("bad/../../../../etc/passwd"),
    "traversal in data": Kind(
        with_file(File(path="../../evil", data=b"x", scheme="data")), "the path is not normalized"
    ),
    "traversal in scripts": Kind(
        with_file(File(path="../../../etc/x", data=b"x", scheme="scripts")), "the path is not normalized"
    ),
    "traversal in purelib": Kind(
        with_file(File(path="../x", data=b"x", scheme="purelib")), "the path is not normalized"
    ),
    "absolute": named("/etc/passwd"),
    "two leading slashes": named("//etc/passwd"),
    "drive": named("C:/x.py"),
    "drive, relative": named("c:x.py"),
    "share": named("\\\\host\\share"),
    "backslash": named("bad\\..\\x.py"),
    "dot": named("bad/./x.py"),
    "empty path component": named("bad//x.py"),
    "empty name": raw_named(b"", "the path is not normalized"),
    "folder with two slashes": raw_named(b"bad//", "the path is not normalized"),
    "tab": named("bad/a\tb.py"),
    "newline": named("bad/a\nb.py"),
    "delete": named("bad/a\x7fb.py"),
    "escape": named("bad/\x1b[2J.py"),
    "8-bit control character": named("bad/\x9b2J.py"),
    "line separator": named("bad/a\u2028b.py"),
    "right to left": named("bad/\u202egnp.py", "bidirectional control characters"),
    "isolated direction": named("bad/\u2066x\u2069.py", "bidirectional control characters"),
    "nul": raw_named(b"bad/l\0b.so", "control characters"),
    "not utf-8": raw_named(b"bad/\xff.so", "bad zip file"),
    "surrogate": raw_named(b"bad/\xed\xa0\x80.so", "bad zip file"),
    "whiteout": Kind(with_file(File(path="bad/.wh.lib.so", data=b"")), r"a whiteout name"),
    "opaque": Kind(with_file(File(path="bad/.wh..wh..opq", data=b"")), "a whiteout name"),
    "whiteout folder": Kind(with_file(File(path=".wh.bad/x", data=b"")), "a whiteout name"),
    "long path component": Kind(with_file(File(path="bad/" + "é" * 128, data=b"")), "too long"),
    "long path": Kind(with_file(File(path="/".join(["d" * 99] * 41), data=b"")), "too long"),
    "too long for its byte-code": Kind(
        with_file(File(path="m" * 250 + ".py", data=b"")), "file name too long for its byte-code"
    ),
    "different name in the local header": Kind(
        local(name=b"bad/lib.sO"), "local header and central directory disagree"
    ),
    "different name in the central directory": Kind(
        central(name=b"bad/lib.sO"), "local header and central directory disagree"
    ),
    "Unicode path extra field": Kind(
        central(extra=unicode_path(b"../../evil.py")), "has a second name in an extra field, b'../../evil.py'"
    ),
    "Unicode path extra field in the local header": Kind(
        local(extra=unicode_path(b"bad/evil.py")), "has a second name in an extra field, b'bad/evil.py'"
    ),
    "duplicate entry": Kind(entries(lambda raws: [*raws, raws[0]]), "entry 'bad/__init__.py' is a duplicate"),
    "duplicate entry with other content": Kind(
        entries(lambda raws: [*raws, entry("bad/__init__.py", b"evil()\n")]),
        "'bad/__init__.py' is a duplicate",
    ),
    "file and folder": Kind(
        with_file(File(path="bad/lib.so/x", data=b"")), "'bad/lib.so' is both a file and a directory"
    ),
    "symlink": mode(stat.S_IFLNK | 0o644, "entry 'bad/lib.so': not a regular file or directory"),
    "character device": mode(stat.S_IFCHR | 0o644, "not a regular file or directory"),
    "block device": mode(stat.S_IFBLK | 0o644, "not a regular file or directory"),
    "pipe": mode(stat.S_IFIFO | 0o644, "not a regular file or directory"),
    "socket": mode(stat.S_IFSOCK | 0o644, "not a regular file or directory"),
    "unknown file type": mode(0o030644, "not a regular file or directory"),
    "folder with content": Kind(
        entries(lambda raws: [*raws, entry("bad/sub/", b"hidden", mode=0o040755)]), "a directory with content"
    ),
    # accepted, as by pip
    "names that differ in case": named("bad/LIB.so", ""),
    "two Unicode forms of é": Kind(
        with_spec(
            files=(
                *SPEC.files,
                File(path="bad/\u00e9.txt", data=b"composed"),
                File(path="bad/e\u0301.txt", data=b"decomposed"),
            )
        )
    ),
    "trailing dot": named("bad/x.", ""),
    "leading and trailing space": named("bad/ x ", ""),
    "leading dash": named("-rf", ""),
    "tilde": named("~/x", ""),
    "shell command in a name": named("bad/$(id);`id`", ""),
    "Windows device name": named("bad/con.txt", ""),
    "character beyond 16 bits": named("bad/\U0001f600.txt", ""),
    "path component of 255 bytes": named("n" * 255, ""),
    "code page 437": raw_named(b"bad/\x81.txt", flags=0),
    "Unicode path extra field with the same name": Kind(central(extra=unicode_path(LIB.encode()))),
    "folder entry": Kind(
        entries(lambda raws: [replace(entry("bad/", b"", stored=True), mode=0o040700), *raws])
    ),
    "folder's mode on a file": mode(0o040755),
    "setuid": mode(0o104755),
    "no mode": mode(0),
    "made on DOS": Kind(central(made=20)),
    "module that runs at start-up": named("bad.pth", ""),
    "sitecustomize": named("sitecustomize.py", ""),
}
