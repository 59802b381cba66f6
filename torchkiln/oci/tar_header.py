"""Parses tar headers and extended headers strictly.

Every tar reader must see the same entry in these bytes. Headers that two readers could understand differently
are refused. So are headers that no layer needs: global pax headers, sparse files, headers of star and v7.
POSIX: pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html; GNU: its manual, "Basic Tar Format".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

BLOCK = 512
EXTENDED_LIMIT = 1 << 20  # bytes of one extended header
OWNER_LIMIT = 0xFFFF_FFFE  # the largest id; -1 means "unchanged" to chown
_SIZE_LIMIT = 1 << 40  # bytes of one file
_OCTAL_SIZE = 8 << 30  # bytes; sizes from here on need more than eleven octal digits
_TIME_LIMIT = 1 << 34  # seconds; the year 2514
_FIELDS = struct.Struct("100s8s8s8s12s12s8sc100s6s2s32s32s8s8s155s12s")
_OCTAL = re.compile(rb" *([0-7]+)[ \0]*")
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,17}")
_TIME = re.compile(r"([0-9]{1,18})(\.[0-9]{1,18})?")
_CHARACTERS = ("ISO-IR 10646 2000 UTF-8", "BINARY")  # with both, readers use the bytes unchanged
_XATTR = "SCHILY.xattr."
_KNOWN = frozenset({"path", "linkpath", "size", "uid", "gid", "mtime"})
# Records that describe the origin of the file and do not change what is unpacked.
_WITHOUT_EFFECT = frozenset(
    {
        *("atime", "ctime", "uname", "gname", "comment", "LIBARCHIVE.creationtime"),
        *("SCHILY.dev", "SCHILY.ino", "SCHILY.nlink"),
    }
)


class DamagedTar(ValueError):
    """A tar that is damaged or has an unknown format; the text is a sentence."""


@dataclass(frozen=True, slots=True)
class Header:
    """The fields of one header, unchanged. Undecodable bytes in texts are surrogates."""

    kind: bytes  # the type letter
    gnu: bool  # GNU's format, not POSIX's
    name: str
    target: str
    mode: int
    uid: int
    gid: int
    size: int
    mtime: int
    device: tuple[int, int]


def parse_header(block: bytes) -> Header:
    """The header in *block*, which has 512 bytes.

    :raises DamagedTar: it is invalid, or readers could understand it differently.
    """
    name, mode, uid, gid, size, mtime, checksum, kind, target, *more = _FIELDS.unpack(block)
    magic, version, _, _, major, minor, prefix, rest = more
    if sum(block) - sum(checksum) + 8 * 32 != number(checksum, "checksum"):
        raise DamagedTar("checksum mismatch")
    gnu = (magic, version) == (b"ustar ", b" \0")
    if not gnu and (magic, version) != (b"ustar\0", b"00"):
        raise DamagedTar("it is neither a POSIX (ustar) nor a GNU header")
    if rest.strip(b"\0") or (gnu and prefix.strip(b"\0")):
        raise DamagedTar("it has the fields of an incremental, sparse or star archive")
    path = text(name, "name")
    if not gnu and (above := text(prefix, "prefix")):
        path = f"{above}/{path}"
    return Header(
        kind=b"0" if kind == b"\0" else kind,
        gnu=gnu,
        name=path,
        target=text(target, "link name"),
        mode=number(mode, "mode", most=0o177777, empty=True),
        uid=number(uid, "user id", most=OWNER_LIMIT, empty=True),
        gid=number(gid, "group id", most=OWNER_LIMIT, empty=True),
        size=number(size, "size", most=_SIZE_LIMIT),
        mtime=number(mtime, "time", most=_TIME_LIMIT, empty=True),
        device=(number(major, "device number", empty=True), number(minor, "device number", empty=True)),
    )


@lru_cache(maxsize=4096)  # most entries have the same owners, modes and times
def number(field: bytes, name: str, *, most: int = 0xFFFF_FFFF, empty: bool = False) -> int:
    """A number in octal digits, or in GNU's base 256; with *empty*, a blank field is 0.

    :raises DamagedTar: it is not such a number, or more than *most*.
    """
    if field[0] & 0x80:
        if field[0] != 0x80:
            raise DamagedTar(f"its {name} is negative or too large")
        value = int.from_bytes(field[1:], "big")
    elif found := _OCTAL.fullmatch(field):
        value = int(found[1], 8)
    elif empty and not field.strip(b" \0"):
        return 0
    else:
        raise DamagedTar(f"its {name} {field!r} is not an octal number")
    if value > most:
        raise DamagedTar(f"its {name} {value} is more than {most}")
    return value


def text(field: bytes, name: str) -> str:
    """The bytes before the first NUL; only NULs may follow.

    :raises DamagedTar: other bytes follow.
    """
    value, _, rest = field.partition(b"\0")
    if rest.strip(b"\0"):
        raise DamagedTar(f"its {name} continues after a NUL byte")
    return value.decode("utf-8", "surrogateescape")


def long_text(content: bytes) -> str:
    """The content of a GNU header of type L or K: a text that ends in one NUL.

    :raises DamagedTar: it does not end in exactly one NUL.
    """
    if not content.endswith(b"\0") or b"\0" in content[:-1] or len(content) < 2:
        raise DamagedTar("a GNU long name does not end in exactly one NUL byte")
    return content[:-1].decode("utf-8", "surrogateescape")


def pax_records(content: bytes) -> dict[str, str]:
    """The records of an extended header of type x: lines of `<length> <key>=<value>`.

    :raises DamagedTar: a record is malformed, unknown, empty or a duplicate.
    """
    records: dict[str, str] = {}
    at = 0
    while at < len(content):
        digits, blank, _ = content[at : at + 8].partition(b" ")
        length = int(digits) if blank and re.fullmatch(rb"[1-9][0-9]*", digits) else 0
        line = content[at : at + length]
        raw, equals, value = line[len(digits) + 1 : -1].partition(b"=")
        if not equals or len(line) != length or line[-1:] != b"\n":
            raise DamagedTar("malformed extended header")
        key = raw.decode("utf-8", "surrogateescape")
        _check_record(key, value, records)
        records[key] = value.decode("utf-8", "surrogateescape")
        at += length
    return records


def _check_record(key: str, value: bytes, before: Mapping[str, str]) -> None:
    if key in before:
        raise DamagedTar(f"duplicate pax record {key!r}")
    if key == "hdrcharset":
        if value.decode("latin-1") not in _CHARACTERS:
            raise DamagedTar("the pax record 'hdrcharset' names a character set other than UTF-8")
    elif key in _KNOWN:
        if not value or b"\0" in value:
            raise DamagedTar(f"the pax record {key!r} is empty or contains a NUL byte")
    elif key not in _WITHOUT_EFFECT and (not key.startswith(_XATTR) or key == _XATTR):
        raise DamagedTar(f"unknown pax record {key[:80]!r}")


def xattrs_of(records: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The extended attributes among pax *records*, sorted by name."""
    found = ((key[len(_XATTR) :], value) for key, value in records.items() if key.startswith(_XATTR))
    return tuple(sorted(found))


def size_of(header: Header, records: Mapping[str, str]) -> int:
    """The bytes of content. A pax size may only differ from the header's if the header cannot hold it.

    :raises DamagedTar: the two differ.
    """
    pax_size = records.get("size")
    if pax_size is None:
        return header.size
    size = decimal(pax_size, "size", _SIZE_LIMIT)
    if size != header.size and size < _OCTAL_SIZE:
        raise DamagedTar(f"its size is {header.size} in the header and {size} in the pax header")
    return size


def decimal(value: str, name: str, most: int) -> int:
    """A number in a pax record.

    :raises DamagedTar: it is not a number, or more than *most*.
    """
    if not _DECIMAL.fullmatch(value) or int(value) > most:
        raise DamagedTar(f"its {name} {value[:40]!r} in the pax header is not a number up to {most}")
    return int(value)


def seconds(value: str) -> int:
    """A time in a pax record, without its fraction.

    :raises DamagedTar: it is not a time.
    """
    match = _TIME.fullmatch(value)
    if not match or int(match[1]) > _TIME_LIMIT:
        raise DamagedTar(f"its time {value[:40]!r} in the pax header is not a number of seconds")
    return int(match[1])
