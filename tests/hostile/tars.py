"""Malformed and malicious layers: each is a stack of tars with the message of its refusal.

These tars are made without torchkiln's code. torchkiln refuses a tar if two common readers (Go's, GNU tar,
bsdtar, Python's tarfile) read it differently, or if it writes outside the root.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

END = bytes(1024)
OUT = "../outside/x"  # a file outside the reader's folder
DOOR = "../outside"  # a link target outside


@dataclass(frozen=True, kw_only=True)
class Tar:
    """A stack of layers, lowest first. `reason` is the message of the refusal, empty if it is accepted."""

    layers: tuple[bytes, ...]
    reason: str = ""


def octal(value: int, width: int) -> bytes:
    """A number in ustar format."""
    return b"%0*o\0" % (width - 1, value)


def binary(value: int, width: int) -> bytes:
    """A large number in GNU format."""
    return b"\x80" + value.to_bytes(width - 1, "big")


def signed_sum(block: bytes) -> int:
    """The checksum of some old tars, which is computed with signed bytes."""
    return sum(byte - 256 if byte > 127 else byte for byte in block)


def head(
    name: bytes,
    kind: bytes = b"0",
    *,
    size: int | bytes = 0,
    to: bytes = b"",
    form: str = "ustar",
    checksum: Callable[[bytes], int] = sum,
    **fields: bytes,
) -> bytes:
    """A tar header. *fields* replace the defaults: mode, uid, gid, mtime, prefix, magic, check, rest."""
    values = {
        "mode": octal(0o755 if kind == b"5" else 0o644, 8),
        "uid": octal(0, 8),
        "gid": octal(0, 8),
        "mtime": octal(1_700_000_000, 12),
        "magic": b"ustar\x0000" if form == "ustar" else b"ustar  \0",
        "prefix": b"",
        "rest": b"",
        "device": octal(0, 8) * 2,
    } | fields
    length = size if isinstance(size, bytes) else octal(size, 12)
    block = name.ljust(100, b"\0") + values["mode"] + values["uid"] + values["gid"] + length + values["mtime"]
    block += b" " * 8 + kind + to.ljust(100, b"\0") + values["magic"] + bytes(64) + values["device"]
    block += values["prefix"].ljust(155, b"\0") + values["rest"].ljust(12, b"\0")
    assert len(block) == 512, name
    check = values.get("check", b"%06o\0 " % checksum(block))
    return block[:148] + check + block[156:]


def padded(data: bytes) -> bytes:
    """*data*, padded to the next block."""
    return data + bytes(-len(data) % 512)


def file(name: bytes, data: bytes = b"data", **more: bytes) -> bytes:
    """A file with *data*."""
    return head(name, size=len(data), **more) + padded(data)


def record(key: str, value: str | bytes) -> bytes:
    """A record of a pax header."""
    raw = value if isinstance(value, bytes) else value.encode()
    rest = len(f" {key}=".encode()) + len(raw) + 1
    length = rest + len(str(rest))
    length = rest + len(str(length))  # again, because the number's own digits can make it one digit longer
    return f"{length} {key}=".encode() + raw + b"\n"


def pax(*records: bytes, kind: bytes = b"x", **more: bytes) -> bytes:
    """An extended header."""
    body = b"".join(records)
    return head(b"PaxHeaders/x", kind, size=len(body), **more) + padded(body)


def long(text: bytes, kind: bytes = b"L", form: str = "gnu") -> bytes:
    """GNU's header for a long name."""
    return head(b"././@LongLink", kind, size=len(text), form=form) + padded(text)


def link(name: bytes, to: bytes) -> bytes:
    return head(name, b"2", to=to)


def hard(name: bytes, to: bytes, **more: bytes) -> bytes:
    return head(name, b"1", to=to, **more)


def folder(name: bytes) -> bytes:
    return head(name, b"5")


def one(*parts: bytes, reason: str = "", end: bytes = END) -> Tar:
    """A layer of *parts*."""
    return Tar(layers=(b"".join(parts) + end,), reason=reason)


def two(lower: bytes, upper: bytes, *, reason: str = "") -> Tar:
    """A layer over another."""
    return Tar(layers=(lower + END, upper + END), reason=reason)


LONG = b"n" * 80 + b"/" + b"m" * 60
F, G = file(b"f"), file(b"g", form="gnu")
UNKNOWN = "has the unsupported type"

NAMES = {
    "absolute": one(file(b"/etc/x"), reason="the name is absolute"),
    "two leading slashes": one(file(b"//etc/x"), reason="the name is absolute"),
    "dot dot": one(file(OUT.encode()), reason="contains '..'"),
    "dot dot inside": one(folder(b"a"), file(b"a/../../outside/x"), reason="contains '..'"),
    "dot dot that stays inside": one(folder(b"a"), file(b"a/../x"), reason="contains '..'"),
    "dot dot after a dot": one(file(b"./../outside/x"), reason="contains '..'"),
    "dot dot alone": one(folder(b".."), reason="contains '..'"),
    "empty name": one(file(b""), reason="the name is not normalized"),
    "empty path component": one(folder(b"a"), file(b"a//x"), reason="the name is not normalized"),
    "dot as a path component": one(folder(b"a"), file(b"a/./x"), reason="the name is not normalized"),
    "a file named dot": one(file(b"."), reason="the name is not normalized"),
    "a file with a trailing slash": one(file(b"x/"), reason="the name is not normalized"),
    "a link with a trailing slash": one(link(b"l/", b"x"), reason="the name is not normalized"),
    "a folder with two trailing slashes": one(folder(b"d//"), reason="the name is not normalized"),
    "NUL in a name": one(file(b"x\0/../../outside/x"), reason="continues after a NUL byte"),
    "NUL in a link": one(link(b"l", b"x\0y"), reason="continues after a NUL byte"),
    "path component of 256 bytes": one(pax(record("path", b"p" * 256)), F, reason="more than 255 bytes"),
    "path of 5000 bytes": one(pax(record("path", b"p/" * 2500 + b"x")), F, reason="more than 4095 bytes"),
    "prefix with dot dot": one(file(b"x", prefix=b"../outside"), reason="contains '..'"),
    "absolute prefix": one(file(b"x", prefix=b"/etc"), reason="the name is absolute"),
    "prefix in GNU's header": one(
        file(b"x", form="gnu", prefix=b"../outside"), reason="incremental, sparse or star"
    ),
}
EXTENDED = {
    "global path": one(pax(record("path", OUT), kind=b"g"), F, reason="has the unsupported type b'g'"),
    "global link path": one(
        pax(record("linkpath", DOOR), kind=b"g"), F, reason="has the unsupported type b'g'"
    ),
    "global size": one(pax(record("size", "0"), kind=b"g"), F, reason="has the unsupported type b'g'"),
    "global comment": one(
        pax(record("comment", "git"), kind=b"g"), F, reason="has the unsupported type b'g'"
    ),
    "sparse name": one(
        pax(record("GNU.sparse.major", "1"), record("GNU.sparse.name", OUT)), F, reason="unknown pax record"
    ),
    "sparse map": one(
        pax(record("GNU.sparse.size", "9"), record("GNU.sparse.map", "0,4")), F, reason="unknown pax record"
    ),
    "real size": one(pax(record("SCHILY.realsize", "9")), F, reason="unknown pax record"),
    "volume name": one(pax(record("GNU.volume.filename", OUT)), F, reason="unknown pax record"),
    "access control list": one(pax(record("SCHILY.acl.access", "user::rwx")), F, reason="unknown pax record"),
    "file flags": one(pax(record("SCHILY.fflags", "immutable")), F, reason="unknown pax record"),
    "extended attribute of libarchive": one(
        pax(record("LIBARCHIVE.xattr.user.x", "eA")), F, reason="unknown pax record"
    ),
    "attribute without a name": one(pax(record("SCHILY.xattr.", "x")), F, reason="unknown pax record"),
    "two extended headers": one(
        pax(record("path", "a")), pax(record("path", OUT)), F, reason="two extended headers"
    ),
    "two extended headers, the first for a link": one(
        pax(record("linkpath", "a")), pax(record("linkpath", DOOR)), link(b"l", b"x"), reason="two extended"
    ),
    "Solaris' extended header": one(
        pax(record("path", OUT), kind=b"X"), F, reason="has the unsupported type b'X'"
    ),
    "long name, then pax": one(long(b"a\0"), pax(record("path", OUT)), F, reason="another format"),
    "pax, then long name": one(
        pax(record("path", "a")), long(OUT.encode() + b"\0"), G, reason="another form"
    ),
    "two long names": one(long(b"a\0"), long(OUT.encode() + b"\0"), G, reason="two extended headers"),
    "long name before a POSIX header": one(long(OUT.encode() + b"\0"), F, reason="another format"),
    "long name with a POSIX header": one(long(b"a\0", form="ustar"), F, reason="two extended headers"),
    "pax with a GNU header": one(pax(record("path", "a"), form="gnu"), G, reason="two extended headers"),
    "long name without NUL": one(long(b"a"), G, reason="does not end in exactly one NUL"),
    "long name with two NULs": one(
        long(b"a\0" + OUT.encode() + b"\0"), G, reason="does not end in exactly one NUL"
    ),
    "long name with dot dot": one(long(OUT.encode() + b"\0"), G, reason="contains '..'"),
    "long name at the end": one(
        F, long(b"a\0"), reason="unexpected end of the tar, after an extended header"
    ),
    "pax header at the end": one(
        F, pax(record("path", "a")), reason="unexpected end of the tar, after an extended header"
    ),
    "pax path with dot dot": one(pax(record("path", OUT)), F, reason="contains '..'"),
    "pax path absolute": one(pax(record("path", "/etc/x")), F, reason="the name is absolute"),
    "pax path with NUL": one(pax(record("path", "a\0/../../outside/x")), F, reason="contains a NUL byte"),
    "pax path empty": one(pax(record("path", "")), F, reason="is empty"),
    "pax path twice": one(pax(record("path", "a"), record("path", OUT)), F, reason="duplicate pax record"),
    "pax link path of a file": one(pax(record("linkpath", DOOR)), F, reason="is not a link"),
    "pax length too short": one(pax(b"9 path=abc\n"), F, reason="malformed extended header"),
    "pax length too long": one(pax(b"40 path=abc\n"), F, reason="malformed extended header"),
    "pax length with a leading zero": one(pax(b"012 path=ab\n"), F, reason="malformed extended header"),
    "pax length with a plus": one(pax(b"+12 path=ab\n"), F, reason="malformed extended header"),
    "pax length missing": one(pax(b" path=abc\n"), F, reason="malformed extended header"),
    "pax without a newline": one(pax(b"11 path=abcd"), F, reason="malformed extended header"),
    "pax character set": one(pax(record("hdrcharset", "UTF-16")), F, reason="a character set other"),
    "pax size smaller": one(
        pax(record("size", "512")), head(b"f", size=1024), file(OUT.encode()), reason="in the pax header"
    ),
    "pax size larger": one(pax(record("size", "1024")), F, file(b"x"), reason="in the pax header"),
    "pax size negative": one(pax(record("size", "-1")), F, reason="is not a number up to"),
    "pax size with a fraction": one(pax(record("size", "4.0")), F, reason="is not a number up to"),
    "pax size with a leading zero": one(pax(record("size", "04")), F, reason="is not a number up to"),
    "pax size of 18 digits": one(pax(record("size", "9" * 18)), F, reason="is not a number up to"),
    "pax owner -1": one(pax(record("uid", str(2**32 - 1))), F, reason="is not a number up to"),
    "pax owner of 40 bits": one(pax(record("gid", str(1 << 40))), F, reason="is not a number up to"),
    "pax time": one(pax(record("mtime", "1e9")), F, reason="is not a number of seconds"),
    "pax time infinite": one(pax(record("mtime", "Infinity")), F, reason="is not a number of seconds"),
    "pax header of 2 MiB": one(pax(record("comment", "c" * (2 << 20))), F, reason="more than 1048576"),
    "long name of 2 MiB": one(long(b"a" * (2 << 20) + b"\0"), G, reason="more than 1048576"),
}
HEADERS = {
    "checksum": one(file(b"f", check=b"0000001\0"), reason="checksum mismatch"),
    "checksum of signed bytes": one(
        file("fü".encode(), checksum=signed_sum),
        reason="checksum mismatch",  # type: ignore[arg-type]
    ),
    "checksum blank": one(file(b"f", check=b" " * 8), reason="is not an octal number"),
    "v7": one(file(b"f", magic=bytes(8)), reason="neither a POSIX"),
    "other magic": one(file(b"f", magic=b"ustar\0\0\0"), reason="neither a POSIX"),
    "GNU's magic, POSIX's version": one(file(b"f", magic=b"ustar 00"), reason="neither a POSIX"),
    "star": one(
        file(b"f", prefix=b"\0" * 131 + octal(0, 12) * 2, rest=b"\0" * 8 + b"tar\0"), reason="or star archive"
    ),
    "size negative": one(head(b"f", size=b"\xff" * 12), reason="is negative"),
    "size of 80 bits": one(head(b"f", size=binary(1 << 80, 12)), reason="is more than"),
    "size blank": one(head(b"f", size=b" " * 12), reason="is not an octal number"),
    "size with a sign": one(head(b"f", size=b"+0000000004\0"), reason="is not an octal number"),
    "size with digits after its end": one(
        head(b"f", size=b"4 \0" + b"0" * 9), reason="is not an octal number"
    ),
    "size hexadecimal": one(head(b"f", size=b"0x000000004\0"), reason="is not an octal number"),
    "owner -1": one(head(b"f", uid=binary(2**32 - 1, 8)), reason="is more than"),
    "owner of 40 bits": one(head(b"f", gid=binary(1 << 40, 8)), reason="is more than"),
    "owner negative": one(head(b"f", uid=b"\xff" * 8), reason="is negative"),
    "time of 60 bits": one(head(b"f", mtime=binary(1 << 60, 12)), reason="is more than"),
    "mode of 24 bits": one(head(b"f", mode=b"77777777"), reason="is more than"),
    **{
        f"type {kind.decode('latin-1')!r}": one(head(b"f", kind), reason=UNKNOWN)
        for kind in (b"7", b"D", b"E", b"I", b"M", b"N", b"S", b"V", b"A", b"8", b"\x80", b" ")
    },
    "folder with content": one(head(b"d", b"5", size=4) + padded(b"data"), reason="but has content"),
    "link with content": one(head(b"l", b"2", size=512, to=b"f") + file(b"x"), reason="but has content"),
    "hard link with content": one(
        F, head(b"h", b"1", size=4, to=b"f") + padded(b"new"), reason="has content"
    ),
    "long name of a folder that is a file": one(
        long(LONG + b"/\0"), file(b"n", form="gnu"), reason="the name is not normalized"
    ),
}
LINKS = {
    "hard link to a link": one(
        link(b"door", DOOR.encode()), hard(b"h", b"door"), file(b"h/x"), reason="not an earlier file"
    ),
    "hard link to a link of a lower layer": two(
        link(b"door", DOOR.encode()), hard(b"h", b"door") + file(b"h/x"), reason="not an earlier file"
    ),
    "hard link through a link": one(
        link(b"door", DOOR.encode()), hard(b"h", b"door/there"), reason="not an earlier file"
    ),
    "absolute hard link": one(hard(b"h", b"/etc/passwd"), reason="the hard link target is absolute"),
    "hard link with dot dot": one(hard(b"h", b"../outside/there"), reason="contains '..'"),
    "hard link with dot dot by pax": one(
        F, pax(record("linkpath", "../outside/there")), hard(b"h", b"f"), reason="contains '..'"
    ),
    "hard link with dot dot by GNU": one(
        G,
        long(b"../outside/there\0", b"K"),
        hard(b"h", b"g", form="gnu"),  # type: ignore[arg-type]
        reason="contains '..'",
    ),
    "hard link to a later entry": one(hard(b"h", b"f"), F, reason="not an earlier file"),
    "hard link to itself": one(hard(b"h", b"h"), reason="not an earlier file"),
    "hard link to a folder": one(folder(b"d"), hard(b"h", b"d"), reason="not an earlier file"),
    "hard link to a lower layer": two(F, hard(b"h", b"f"), reason="not an earlier file"),
    "through a link": one(link(b"door", DOOR.encode()), file(b"door/x"), reason="is not a directory"),
    "through a link of a lower layer": two(
        link(b"door", DOOR.encode()), file(b"door/x"), reason="through a symbolic"
    ),
    "through an absolute link of a lower layer": two(
        link(b"door", b"/tmp"), file(b"door/x"), reason="through a symb"
    ),
    "through two links": two(
        link(b"a", b"b") + link(b"b", DOOR.encode()), file(b"a/x"), reason="through a symbolic"
    ),
    "folder over a link": two(
        link(b"door", DOOR.encode()), folder(b"door"), reason="would replace a symbolic"
    ),
    "folder over a link, then through it": two(
        link(b"door", DOOR.encode()), folder(b"door") + file(b"door/x"), reason="would replace a symbolic"
    ),
    "folder over a file": two(file(b"d"), folder(b"d"), reason="would replace a file by a directory"),
    "a link, then a file of that name": one(
        link(b"x", OUT.encode()), file(b"x", b"new"), reason="duplicate entry"
    ),
    "file over a folder": two(folder(b"d") + file(b"d/x"), file(b"d"), reason="would replace a directory"),
    "link over a folder": two(folder(b"d"), link(b"d", DOOR.encode()), reason="would replace a directory"),
    "below a file": one(file(b"a"), file(b"a/x"), reason="is not a directory"),
    "below a file of a lower layer": two(file(b"a"), file(b"a/x"), reason="through a symbolic link or a"),
    "duplicate entry": one(F, file(b"f", b"other"), reason="duplicate entry"),
    "duplicate entry with a leading ./": one(F, file(b"./f", b"other"), reason="duplicate entry"),
    "duplicate folder": one(folder(b"d"), folder(b"d/"), reason="duplicate entry"),
    "parent after its content": one(file(b"d/x"), folder(b"d"), reason="precedes its parent"),
    "empty link target": one(link(b"l", b""), reason="has an empty or too long link target"),
    "character device": one(head(b"n", b"3"), reason="a device or a pipe"),
    "block device": one(head(b"n", b"4"), reason="a device or a pipe"),
    "pipe": one(head(b"n", b"6"), reason="a device or a pipe"),
    "whiteout": one(file(b".wh.f", b""), reason="is a whiteout of a path that no layer below contains"),
    "opaque whiteout": one(folder(b"d"), file(b"d/.wh..wh..opq", b""), reason="is a whiteout"),
}
ENDS = {
    "one zero block": one(F, bytes(512), file(OUT.encode()), reason="trailing data after the end"),
    "data after the end": one(F, end=END + file(OUT.encode()) + END, reason="trailing data after the end"),
    "a second tar": one(F, end=END + F + END, reason="trailing data after the end"),
    "4 MiB of zeros after the end": one(F, end=bytes(4 << 20), reason="zeros after the end"),
    "partial block after the end": one(F, end=END + bytes(100), reason="two zero blocks"),
    "no zero blocks": one(F, end=b"", reason="two zero blocks"),
    "one zero block at the end": one(F, end=bytes(512), reason="two zero blocks"),
    "truncated in a file": one(head(b"f", size=5000), end=b"", reason="unexpected end of the tar, within f"),
    "truncated in a header": one(F[:300], end=b"", reason="unexpected end of the tar, within a header"),
    "truncated in an extended header": one(
        pax(record("path", "a" * 900))[:900], end=b"", reason="unexpected end of the tar, within"
    ),
    "nothing": one(end=b"", reason="two zero blocks"),
    "not a tar": one(b"MZ" + bytes(range(256)) * 4, end=b"", reason="its checksum is negative"),
}
GOOD = {
    "plain": one(folder(b"d/"), file(b"d/x"), link(b"l", b"d/x"), hard(b"h", b"d/x")),
    "leading ./": one(folder(b"./"), folder(b"./d/"), file(b"./d/x")),
    "prefix": one(folder(b"p"), file(b"x", prefix=b"p")),
    "long by pax": one(folder(b"n" * 80), pax(record("path", LONG)), F),
    "long by GNU": one(folder(b"n" * 80), long(LONG + b"\0"), G),
    "long link by GNU": one(long(b"t" * 200 + b"\0", b"K"), head(b"l", b"2", to=b"t" * 100, form="gnu")),
    "long link by pax": one(pax(record("linkpath", "t" * 200)), link(b"l", b"t" * 100)),
    "not UTF-8": one(file(b"f\xff\xfe")),
    "newline in a name": one(file(b"a\nb")),
    "old type of files": one(head(b"f", b"\0", size=4) + padded(b"data")),
    "numbers with blanks": one(file(b"f", mode=b"   644 \0", uid=b"     0 \0")),
    "numbers in base 256": one(file(b"f", uid=binary(70_000, 8), mtime=binary(1_700_000_001, 12))),
    "empty device numbers": one(file(b"f", device=bytes(16))),
    "comment and times": one(pax(record("comment", "c"), record("atime", "1.5"), record("mtime", "7.25")), F),
    "character set": one(pax(record("hdrcharset", "BINARY"), record("path", b"f\xff")), F),
    "missing parent": one(file(b"no/where/x")),
    "a file over a file": two(file(b"f"), file(b"f", b"new")),
    "a file over a link": two(link(b"x", OUT.encode()), file(b"x", b"new")),
    "a link over a file": two(file(b"x"), link(b"x", b"nowhere")),
    "empty": one(),
    "ten blocks of zeros": one(F, end=bytes(10240)),
}
GROUPS = {
    "Names": NAMES,
    "Extended headers": EXTENDED,
    "Headers": HEADERS,
    "Links and order": LINKS,
    "End of the tar": ENDS,
    "Unusual, but accepted": GOOD,
}
TARS: dict[str, Tar] = {name: tar for group in GROUPS.values() for name, tar in group.items()}
assert len(TARS) == sum(map(len, GROUPS.values())), "duplicate names of kinds"
