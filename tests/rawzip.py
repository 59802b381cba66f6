"""Take a zip apart and reassemble it, with any false values in its headers."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

FieldOverrides = Mapping[str, int | bytes]


@dataclass(frozen=True, kw_only=True)
class Raw:
    """An entry of a zip. `local` and `central` replace fields of its local header and its central header.

    Fields of both: signature, version, flags, method, crc, compressed, size, name, extra, name_length,
    extra_length. Fields of `central` only: made, disk, mode, offset, comment, comment_length.
    """

    name: bytes
    stream: bytes
    crc: int
    size: int
    method: int
    flags: int = 0x800
    mode: int = 0o100644
    gap: bytes = b""  # before the local header
    descriptor: bytes = b""  # after the stream
    local: FieldOverrides = field(default_factory=dict)
    central: FieldOverrides = field(default_factory=dict)


def deflated(data: bytes) -> bytes:
    """*data* as a raw deflate stream."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    return compressor.compress(data) + compressor.flush()


def entry(name: str, data: bytes, *, stored: bool = False, mode: int = 0o100644) -> Raw:
    """A valid entry."""
    stream = data if stored else deflated(data)
    return Raw(
        name=name.encode(),
        stream=stream,
        crc=zlib.crc32(data),
        size=len(data),
        method=0 if stored else 8,
        mode=mode,
    )


def content(raw: Raw) -> bytes:
    """The data of a valid entry."""
    return zlib.decompress(raw.stream, -15) if raw.method else raw.stream


def read(path: Path) -> list[Raw]:
    """The entries of a valid zip."""
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


def write(
    entries: Iterable[Raw],
    *,
    front: bytes = b"",
    gap: bytes = b"",
    comment: bytes = b"",
    behind: bytes = b"",
    end: FieldOverrides | None = None,
    end64: FieldOverrides | None = None,
) -> bytes:
    """A zip of the entries.

    :param gap: bytes between the last entry and the directory.
    :param behind: bytes after the end record and its comment.
    :param end: false values in the end record: disk, first, here, count, size, offset, comment.
    :param end64: if set, a zip64 end record with false values (and its locator: at, at_disk, disks, length).
    """
    out, directory = bytearray(front), bytearray()
    count = 0
    for raw in entries:
        out += raw.gap
        offset = len(out)
        out += _local(raw) + raw.stream + raw.descriptor
        directory += _central(raw, offset)
        count += 1
    out += gap
    true = {"disk": 0, "first": 0, "here": count, "count": count, "size": len(directory), "offset": len(out)}
    out += directory
    if end64 is not None:
        told64 = {**true, "length": 44, "at": len(out), "at_disk": 0, "disks": 1, **end64}
        out += struct.pack("<4sQ2H", b"PK\6\6", told64["length"], 45, 45)
        out += struct.pack("<2L4Q", *(told64[key] for key in true))
        out += struct.pack("<4sLQL", b"PK\6\7", told64["at_disk"], told64["at"], told64["disks"])
        true |= {"here": 0xFFFF, "count": 0xFFFF, "size": 0xFFFFFFFF, "offset": 0xFFFFFFFF}
    short = {**true, "comment": len(comment), **(end or {})}
    return bytes(out) + struct.pack("<4s4H2LH", b"PK\5\6", *short.values()) + comment + behind


def _local(raw: Raw) -> bytes:
    fields = {**_true(raw), **raw.local}
    name, extra = fields["name"], fields["extra"]
    numbers = (fields[key] for key in ("crc", "compressed", "size"))
    head = (fields["signature"], fields["version"], fields["flags"], fields["method"], 0, 33, *numbers)
    lengths = (fields.get("name_length", len(name)), fields.get("extra_length", len(extra)))
    return struct.pack("<4s5H3L2H", *head, *lengths) + name + extra


def _central(raw: Raw, offset: int) -> bytes:
    extras = {"signature": b"PK\1\2", "made": 0x0314, "disk": 0, "mode": raw.mode << 16}
    fields = {**_true(raw), **extras, "offset": offset, "comment": b"", **raw.central}
    texts = [fields[key] for key in ("name", "extra", "comment")]
    lengths = (
        fields.get(f"{key}_length", len(text))
        for key, text in zip(("name", "extra", "comment"), texts, strict=True)
    )
    numbers = (fields[key] for key in ("crc", "compressed", "size"))
    head = (fields["signature"], fields["made"], fields["version"], fields["flags"], fields["method"], 0, 33)
    places = (fields["disk"], 0, fields["mode"], fields["offset"])
    return struct.pack("<4s6H3L5H2L", *head, *numbers, *lengths, *places) + b"".join(texts)


def _true(raw: Raw) -> dict[str, int | bytes]:
    return {
        "signature": b"PK\3\4",
        "version": 20,
        "flags": raw.flags,
        "method": raw.method,
        "crc": raw.crc,
        "compressed": len(raw.stream),
        "size": raw.size,
        "name": raw.name,
        "extra": b"",
    }


def changed(path: Path, of: str, **fields: object) -> bytes:
    """The zip at *path* with *fields* of its entry *of* replaced."""
    return edited(path, of, lambda raw: replace(raw, **fields))  # type: ignore[arg-type]


def edited(path: Path, name: str, edit: Callable[[Raw], Raw | None]) -> bytes:
    """The zip at *path* with its entry *name* replaced by *edit*; removed if None."""
    found = read(path)
    assert sum(raw.name == name.encode() for raw in found) == 1
    made = [edit(raw) if raw.name == name.encode() else raw for raw in found]
    return write(raw for raw in made if raw is not None)
