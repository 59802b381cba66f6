"""512 bytes of a tar → the fields of one header; the bytes of an extended header → what they say.

Strict: every reader of tars must take these bytes for the same entry. What two readers could take for two
things is refused, as is what no layer needs: global pax headers, sparse files, star's and v7's headers.
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
_OCTAL_SIZE = 8 << 30  # what eleven octal digits cannot hold
_TIME_LIMIT = 1 << 34  # seconds; the year 2514
_FIELDS = struct.Struct("100s8s8s8s12s12s8sc100s6s2s32s32s8s8s155s12s")
_OCTAL = re.compile(rb" *([0-7]+)[ \0]*")
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,17}")
_TIME = re.compile(r"([0-9]{1,18})(\.[0-9]{1,18})?")
_CHARACTERS = ("ISO-IR 10646 2000 UTF-8", "BINARY")  # of both, readers take the bytes as they stand
_XATTR = "SCHILY.xattr."
_KNOWN = frozenset({"path", "linkpath", "size", "uid", "gid", "mtime"})
# Where the file came from; no reader makes anything of them that we compare.
_WITHOUT_EFFECT = frozenset(
    {
        *("atime", "ctime", "uname", "gname", "comment", "LIBARCHIVE.creationtime"),
        *("SCHILY.dev", "SCHILY.ino", "SCHILY.nlink"),
    }
)


class DamagedTar(ValueError):
    """A tar that is damaged, or that this reader does not know; the text is a sentence."""


@dataclass(frozen=True, slots=True)
class Header:
    """One header as it stands. Texts are bytes of the file system, undecodable ones as surrogates."""

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

    :raises DamagedTar: it is none that all readers take alike.
    """
    (
        name,
        mode,
        uid,
        gid,
        size,
        mtime,
        checksum,
        kind,
        target,
        magic,
        version,
        _,
        _,
        major,
        minor,
        prefix,
        rest,
    ) = _FIELDS.unpack(block)
    if sum(block) - sum(checksum) + 8 * 32 != number(checksum, "checksum"):
        raise DamagedTar("its checksum is wrong")
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
        device=(
            number(major, "major device number", empty=True),
            number(minor, "minor device number", empty=True),
        ),
    )


@lru_cache(maxsize=4096)  # owners, modes and times are the same over and over
def number(field: bytes, name: str, *, most: int = 0xFFFF_FFFF, empty: bool = False) -> int:
    """Octal digits between blanks or NULs, or GNU's base 256; with *empty*, nothing is 0.

    :raises DamagedTar: it is no such number, or more than *most*.
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
    """Bytes up to the first NUL, behind which there must be nothing else.

    :raises DamagedTar: there is.
    """
    value, _, behind = field.partition(b"\0")
    if behind.strip(b"\0"):
        raise DamagedTar(f"its {name} goes on behind a NUL byte")
    return value.decode("utf-8", "surrogateescape")


def long_text(content: bytes) -> str:
    """What a header of GNU's types L and K brings: a text that ends in one NUL.

    :raises DamagedTar: it does not.
    """
    if not content.endswith(b"\0") or b"\0" in content[:-1] or len(content) < 2:
        raise DamagedTar("a GNU long name does not end in one NUL byte")
    return content[:-1].decode("utf-8", "surrogateescape")


def pax_records(content: bytes) -> dict[str, str]:
    """The records of an extended header of type x: lines of `<length> <key>=<value>`.

    :raises DamagedTar: one that cannot be read, is not known here, is empty, or stands twice.
    """
    records: dict[str, str] = {}
    at = 0
    while at < len(content):
        digits, blank, _ = content[at : at + 8].partition(b" ")
        length = int(digits) if blank and re.fullmatch(rb"[1-9][0-9]*", digits) else 0
        line = content[at : at + length]
        raw, equals, value = line[len(digits) + 1 : -1].partition(b"=")
        if not equals or len(line) != length or line[-1:] != b"\n":
            raise DamagedTar("a pax header cannot be read")
        key = raw.decode("utf-8", "surrogateescape")
        _demand_record(key, value, records)
        records[key] = value.decode("utf-8", "surrogateescape")
        at += length
    return records


def _demand_record(key: str, value: bytes, before: Mapping[str, str]) -> None:
    if key in before:
        raise DamagedTar(f"the pax record {key!r} appears twice in one header")
    if key == "hdrcharset":
        if value.decode("latin-1") not in _CHARACTERS:
            raise DamagedTar("the pax record 'hdrcharset' names another character set than UTF-8")
    elif (
        key not in _KNOWN
        and key not in _WITHOUT_EFFECT
        and not (key.startswith(_XATTR) and len(key) > len(_XATTR))
    ):
        raise DamagedTar(f"unknown pax record {key[:80]!r}")
    elif key in _KNOWN and (not value or b"\0" in value):
        raise DamagedTar(f"the pax record {key!r} is empty or holds a NUL byte")


def xattrs_of(records: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The extended attributes among pax *records*, by name."""
    return tuple(
        sorted((key[len(_XATTR) :], value) for key, value in records.items() if key.startswith(_XATTR))
    )


def size_of(header: Header, records: Mapping[str, str]) -> int:
    """The bytes of content. A pax size says what the header cannot; it never says another thing.

    :raises DamagedTar: the two differ, and the header could have held it.
    """
    told = records.get("size")
    if told is None:
        return header.size
    size = decimal(told, "size", _SIZE_LIMIT)
    if size != header.size and size < _OCTAL_SIZE:
        raise DamagedTar(f"its size is {header.size} in the header and {size} in the pax header")
    return size


def decimal(value: str, name: str, most: int) -> int:
    """A number in a pax record.

    :raises DamagedTar: it is none, or more than *most*.
    """
    if not _DECIMAL.fullmatch(value) or int(value) > most:
        raise DamagedTar(f"its {name} {value[:40]!r} in the pax header is not a number up to {most}")
    return int(value)


def seconds(value: str) -> int:
    """A time in a pax record, its fraction cut off.

    :raises DamagedTar: it is none.
    """
    found = _TIME.fullmatch(value)
    if not found or int(found[1]) > _TIME_LIMIT:
        raise DamagedTar(f"its time {value[:40]!r} in the pax header is not a number of seconds")
    return int(found[1])
