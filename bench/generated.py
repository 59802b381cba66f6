"""Generate large wheels quickly, by repeating a few precomputed deflate streams."""

from __future__ import annotations

import base64
import functools
import hashlib
import random
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO

from torchkiln.model.cell import Source
from torchkiln.model.lock import LockedWheel
from torchkiln.store.store import Store

_LOCAL = struct.Struct("<4s5H3L2H")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_DATE = 33  # 1980-01-01
_STEPS = (8 << 20, 1 << 20, 64 << 10, 4 << 10)  # bytes of data in a piece


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """The content of a file, deflated once."""

    stream: bytes
    crc: int
    size: int
    digest: str  # the hash of the content, in RECORD's format


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelShape:
    """A wheel of *size* bytes, of which the fraction *words* (0 to 1) is compressible data."""

    size: int
    words: float
    modules: int = 0  # Python sources of about 4 kB


def write_wheel(wheel: LockedWheel, shape: WheelShape, store: Store) -> LockedWheel:
    """Write a wheel of *shape* with *wheel*'s name into *store*, and return it as a lock has it."""
    temporary = store.temporary("wheel")
    with temporary.open("wb", buffering=1 << 20) as out:
        zipped = _Zip(out)
        stem = "-".join(wheel.filename.split("-")[:2])
        record = []
        for path, piece in _files(wheel, stem, shape):
            zipped.add(path, piece)
            record.append(f"{path},{piece.digest},{piece.size}")
        own = f"{stem}.dist-info/RECORD"
        zipped.add(own, _piece("\n".join((*record, f"{own},,", "")).encode()))
        made = replace(wheel, size=zipped.end(), sha256=zipped.sha256.hexdigest())
    store.adopt(temporary, store.wheel(made))
    return made


def named(name: str) -> LockedWheel:
    """A wheel with the name *name*, which is not written yet."""
    return LockedWheel(
        name=name,
        version="1.0",
        filename=f"{name}-1.0-py3-none-any.whl",
        sha256="0" * 64,
        size=0,
        index=Source.DEFAULT,
    )


def _files(wheel: LockedWheel, stem: str, shape: WheelShape) -> Iterator[tuple[str, Piece]]:
    top = re.sub(r"\W", "_", wheel.name)
    for number in range(shape.modules):
        yield f"{top}/m{number}.py", _module()
    left = {"words": int(shape.size * shape.words), "noise": int(shape.size * (1 - shape.words))}
    for kind, missing in left.items():
        number = 0
        for step in _STEPS:
            piece = _data(kind, step)
            while missing >= len(piece.stream):
                yield f"{top}/{kind}{number}.so", piece
                missing, number = missing - len(piece.stream), number + 1
    # The tags are the last three parts of the name; a build number may precede them.
    tags = "-".join(wheel.filename.removesuffix(".whl").split("-")[-3:])
    metadata = f"Metadata-Version: 2.1\nName: {wheel.name}\nVersion: {wheel.version}\n"
    yield f"{stem}.dist-info/METADATA", _piece(metadata.encode())
    yield (
        f"{stem}.dist-info/WHEEL",
        _piece(f"Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: false\nTag: {tags}\n".encode()),
    )


def _piece(data: bytes) -> Piece:
    compressor = zlib.compressobj(6, zlib.DEFLATED, -15)
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return Piece(
        stream=compressor.compress(data) + compressor.flush(),
        crc=zlib.crc32(data),
        size=len(data),
        digest=f"sha256={digest}",
    )


@functools.cache
def _data(kind: str, size: int) -> Piece:
    """*size* bytes of noise, or of words, which deflate compresses to about two fifths."""
    chance = random.Random(f"{kind} {size}")
    if kind == "noise":
        return _piece(chance.randbytes(size))
    words = [f"{chance.getrandbits(32):x} " for _ in range(3000)]
    return _piece("".join(chance.choices(words, k=size // 8)).encode())


@functools.cache
def _module() -> Piece:
    lines = [
        f'def function_{number}(value, *rest):\n    """Add {number}."""\n    return value + {number}\n'
        for number in range(45)
    ]
    return _piece("\n".join(lines).encode())


class _Zip:
    """Writes a zip file of precomputed streams, smaller than 4 GB."""

    def __init__(self, out: BinaryIO) -> None:
        self._out, self._at, self._count, self._directory = out, 0, 0, bytearray()
        self.sha256 = hashlib.sha256()

    def add(self, path: str, piece: Piece) -> None:
        name = path.encode()
        fields = (piece.crc, len(piece.stream), piece.size, len(name), 0)
        self._directory += _ENTRY.pack(
            b"PK\1\2", 0x0314, 20, 0x800, 8, 0, _DATE, *fields, 0, 0, 0, 0o100644 << 16, self._at
        )
        self._directory += name
        self._count += 1
        self._write(_LOCAL.pack(b"PK\3\4", 20, 0x800, 8, 0, _DATE, *fields) + name)
        self._write(piece.stream)

    def end(self) -> int:
        """Write the directory; returns the size of the file."""
        start = self._at
        self._write(bytes(self._directory))
        self._write(_END.pack(b"PK\5\6", 0, 0, self._count, self._count, len(self._directory), start, 0))
        return self._at

    def _write(self, data: bytes) -> None:
        self._out.write(data)
        self.sha256.update(data)
        self._at += len(data)
