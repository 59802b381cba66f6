"""A layer blob -> LayerFacts: every digest computed anew, every tar header looked at. An oracle.

It shares no code with the modules that write layers, so that it can judge them. Bounded memory: pieces of
the blob, the names of the layer, a score of faults.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from isal import isal_zlib

from torchkiln.oci.inspect_tar import TarInspector

GZIP_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
TAR_TYPE = "application/vnd.oci.image.layer.v1.tar"

_ISAL_ERROR = cast(type[Exception], isal_zlib.error)  # its stub calls the class an instance
_MAGIC = b"\x1f\x8b"
_READ = 1 << 20  # bytes asked of the file at once
_FIRST = 1 << 14  # fed to a new member: most are small, and what is behind one is copied back
_NEXT = 1 << 18
_OUT = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerFacts:
    """What a layer is, whatever its descriptor says. `wants` are folders that lower layers must have."""

    digest: str
    diff_id: str | None  # None: no layer that is known here
    size: int
    unpacked: int
    faults: tuple[str, ...]
    folders: frozenset[str]
    others: frozenset[str]
    wants: tuple[str, ...]


def inspect_layer(path: Path, media_type: str) -> LayerFacts:
    """Read the blob at *path* once, to its end, faulty or not. One that is no tar, by type, is only hashed.

    :raises OSError: it cannot be read.
    """
    faults: list[str] = []
    unpacked, size = hashlib.sha256(), 0
    tar = TarInspector()
    with path.open("rb") as file:
        source = _Source(file)
        if media_type in (GZIP_TYPE, TAR_TYPE):
            zipped = bytes(source.peek(2)) == _MAGIC
            if zipped and media_type == TAR_TYPE:
                faults.append(f"wrong media type: {media_type!r}, but the blob is gzip")
            try:
                for piece in _inflated(source) if zipped or media_type == GZIP_TYPE else _plain(source):
                    unpacked.update(piece)
                    size += len(piece)
                    tar.feed(piece)
                tar.close()
            except _Broken as error:
                faults.append(str(error))
        source.drain()
    return LayerFacts(
        digest=f"sha256:{source.hash.hexdigest()}",
        diff_id=f"sha256:{unpacked.hexdigest()}" if media_type in (GZIP_TYPE, TAR_TYPE) else None,
        size=source.size,
        unpacked=size,
        faults=(*faults, *tar.faults()),
        folders=frozenset(tar.folders),
        others=frozenset(tar.others),
        wants=tuple(tar.wants()),
    )


class _Broken(Exception):
    """The compressed stream cannot be read on; the text says why."""


class _Source:
    """The blob, hashed as it is read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._held = memoryview(b"")
        self.hash = hashlib.sha256()
        self.size = 0

    @property
    def position(self) -> int:
        """Bytes taken so far."""
        return self.size - len(self._held)

    def peek(self, most: int) -> memoryview:
        """The next bytes, at least the two of a magic number; fewer only at the end."""
        if len(self._held) < 2:
            more = self._file.read(_READ)
            self.hash.update(more)
            self.size += len(more)
            self._held = memoryview(bytes(self._held) + more)
        return self._held[:most]

    def take(self, count: int) -> None:
        """Go on by *count* bytes of what was seen."""
        self._held = self._held[count:]

    def drain(self) -> None:
        """Hash what nobody took."""
        while self._held or self.peek(1):
            self._held = memoryview(b"")


def _plain(source: _Source) -> Iterator[bytes]:
    while piece := source.peek(_OUT):
        source.take(len(piece))
        yield bytes(piece)


def _inflated(source: _Source) -> Iterator[bytes]:
    """The content of all gzip members, one behind the other."""
    while piece := source.peek(_FIRST):
        start = source.position
        if bytes(piece[:2]) != _MAGIC:
            where = "behind the last gzip member" if start else "at the start"
            raise _Broken(f"trailing bytes: what is {where} (byte {start}) is no gzip member")
        try:
            yield from _member(source, piece)
        except _ISAL_ERROR as error:
            raise _Broken(f"the gzip member at byte {start} is damaged: {error}") from error


def _member(source: _Source, piece: memoryview) -> Iterator[bytes]:
    start = source.position
    inflater = isal_zlib.decompressobj(wbits=31)  # 31: gzip, with its CRC and size checked
    while True:
        out = inflater.decompress(piece, _OUT)
        yield out
        # A piece may hold more than one output buffer, and the last of it may wait inside.
        while not inflater.eof and (inflater.unconsumed_tail or len(out) == _OUT):
            out = inflater.decompress(inflater.unconsumed_tail, _OUT)
            yield out
        if inflater.eof:
            source.take(len(piece) - len(inflater.unused_data))
            return
        source.take(len(piece))
        piece = source.peek(_NEXT)
        if not piece:
            raise _Broken(f"the gzip member at byte {start} is cut off")
