"""A zip taken to pieces and put together again, with whatever lies one wants in it."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Raw:
    """One entry: its local header, what the directory tells (`told_*`; None: the same), and its stream."""

    name: bytes
    stream: bytes
    crc: int
    size: int
    method: int
    flags: int = 0x800
    mode: int = 0o100644
    gap: bytes = b""  # in front of the local header
    local_name: bytes | None = None
    told_crc: int | None = None
    told_size: int | None = None
    told_compressed: int | None = None
    told_offset: int | None = None
    told_flags: int | None = None


def deflated(data: bytes) -> bytes:
    """As a raw deflate stream."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    return compressor.compress(data) + compressor.flush()


def entry(name: str, data: bytes, *, stored: bool = False) -> Raw:
    """An honest entry."""
    stream = data if stored else deflated(data)
    return Raw(
        name=name.encode(), stream=stream, crc=zlib.crc32(data), size=len(data), method=0 if stored else 8
    )


def read(path: Path) -> list[Raw]:
    """The entries of an honest zip."""
    data = path.read_bytes()
    found = []
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            names, extra = struct.unpack_from("<2H", data, info.header_offset + 26)
            start = info.header_offset + 30 + names + extra
            found.append(
                Raw(
                    name=info.filename.encode(),
                    stream=data[start : start + info.compress_size],
                    crc=info.CRC,
                    size=info.file_size,
                    method=info.compress_type,
                    mode=info.external_attr >> 16,
                )
            )
    return found


def write(entries: Iterable[Raw], *, front: bytes = b"", comment: bytes = b"") -> bytes:
    """The zip that they make."""
    out, directory = bytearray(front), bytearray()
    count = 0
    for raw in entries:
        out += raw.gap
        offset = len(out)
        name = raw.name if raw.local_name is None else raw.local_name
        sizes = (raw.crc, len(raw.stream) if raw.told_compressed is None else raw.told_compressed, raw.size)
        out += (
            struct.pack("<4s5H3L2H", b"PK\3\4", 20, raw.flags, raw.method, 0, 33, *sizes, len(name), 0) + name
        )
        out += raw.stream
        directory += struct.pack(
            "<4s6H3L5H2L",
            b"PK\1\2",
            0x0314,
            20,
            _or(raw.told_flags, raw.flags),
            raw.method,
            0,
            33,
            _or(raw.told_crc, raw.crc),
            sizes[1],
            _or(raw.told_size, raw.size),
            len(raw.name),
            0,
            0,
            0,
            0,
            raw.mode << 16,
            _or(raw.told_offset, offset),
        )
        directory += raw.name
        count += 1
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(directory), len(out), len(comment))
    return bytes(out + directory + end) + comment


def changed(path: Path, of: str, **fields: object) -> bytes:
    """The zip at *path* with *fields* of its entry *name* replaced."""
    found = read(path)
    assert sum(raw.name == of.encode() for raw in found) == 1
    return write(replace(raw, **fields) if raw.name == of.encode() else raw for raw in found)  # type: ignore[arg-type]


def edited(path: Path, name: str, edit: Callable[[Raw], Raw | None]) -> bytes:
    """The zip at *path* with its entry *name* as *edit* makes it; left out for None."""
    found = [edit(raw) if raw.name == name.encode() else raw for raw in read(path)]
    return write(raw for raw in found if raw is not None)


def _or(told: int | None, true: int) -> int:
    return true if told is None else told
