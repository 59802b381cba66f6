"""Checks a layer blob: computes every digest again and reads every tar header.

It shares no code with the modules that write layers, not even the table of compressions, so that it finds
their faults; the tar is read by the reader that unpacks (`tar_reader`). Memory is limited: pieces of the
blob, the paths of the layer, twenty faults.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from isal import isal_zlib

from torchkiln.oci.tar_header import DamagedTar
from torchkiln.oci.tar_names import LayerPaths
from torchkiln.oci.tar_reader import RATIO, TarEntry, TarReader, most_unpacked
from torchkiln.util.strict_json import open_plain

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

GZIP_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
TAR_TYPE = "application/vnd.oci.image.layer.v1.tar"
ZSTD_TYPE = "application/vnd.oci.image.layer.v1.tar+zstd"
LAYER_TYPES = (GZIP_TYPE, TAR_TYPE, ZSTD_TYPE)

_ISAL_ERROR = cast(type[Exception], isal_zlib.error)  # its type stub declares an instance
_MAGIC = b"\x1f\x8b"
_FRAME = b"\x28\xb5\x2f\xfd"
_SKIPPED = b"\x2a\x4d\x18"  # after a byte from 0x50 to 0x5f: a skippable zstd frame
_WINDOW_LOG = 27  # 128 MiB: the default limit of the zstd program
_READ = 1 << 20  # bytes of one read
_FIRST = 1 << 14  # bytes passed to a new member: most members are small, and unused bytes are copied
_NEXT = 1 << 18
_OUT = 1 << 20
_FAULT_LIMIT = 20
_OWNER_LIMIT = 1 << 16  # rootless engines map 65,536 ids


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerFacts:
    """The properties of a layer, independent of its descriptor."""

    digest: str
    diff_id: str | None  # None: not a known layer type
    size: int
    unpacked: int
    faults: tuple[str, ...]
    paths: LayerPaths


def inspect_layer(
    path: Path, media_type: str, advanced: Callable[[int], None] = lambda _: None
) -> LayerFacts:
    """Read the whole blob at *path*, even if it is faulty. A blob that is not a layer is only hashed.

    :param advanced: called with the length of each piece that was read.
    :raises OSError: the blob cannot be read.
    """
    faults: list[str] = []
    unpacked, size = hashlib.sha256(), 0
    tar = TarInspector()
    with open_plain(path, follow=False) as file:
        source = _BlobReader(file, advanced)
        if media_type in LAYER_TYPES:
            found = _type_of(bytes(source.peek(4)))
            if found not in (TAR_TYPE, media_type):
                name = found.rpartition("+")[2]
                faults.append(f"wrong media type: {media_type!r}, but the blob is {name}")
            # A blob without magic number is read by its media type; the decoder then reports the fault.
            read = _READERS[media_type if found == TAR_TYPE else found]

            def pieces(most: int) -> Iterator[bytes]:
                nonlocal size
                for piece in read(source):
                    unpacked.update(piece)
                    size += len(piece)
                    if size > most:
                        raise _Broken(f"the blob unpacks to more than {most} bytes, {RATIO} times its size")
                    yield piece

            content = pieces(most_unpacked(os.fstat(file.fileno()).st_size))
            try:
                tar.inspect(content)
                for _ in content:  # the rest, after a fault
                    pass
            except _Broken as error:
                faults.append(str(error))
        source.drain()
    return LayerFacts(
        digest=f"sha256:{source.hash.hexdigest()}",
        diff_id=f"sha256:{unpacked.hexdigest()}" if media_type in LAYER_TYPES else None,
        size=source.size,
        unpacked=size,
        faults=(*faults, *tar.faults()),
        paths=tar.paths,
    )


class _Broken(Exception):
    """The compressed stream cannot be read further; the text says why."""


class _BlobReader:
    """Reads and hashes a blob."""

    def __init__(self, file: BinaryIO, advanced: Callable[[int], None]) -> None:
        self._file, self._advanced = file, advanced
        self._held = memoryview(b"")
        self.hash = hashlib.sha256()
        self.size = 0

    @property
    def position(self) -> int:
        """Bytes taken so far."""
        return self.size - len(self._held)

    def peek(self, most: int) -> memoryview:
        """The next bytes, at most *most*; fewer than four only at the end, or if *most* is smaller."""
        while len(self._held) < 4 and (more := self._file.read(_READ)):
            self.hash.update(more)
            self.size += len(more)
            self._advanced(len(more))
            self._held = memoryview(bytes(self._held) + more)
        return self._held[:most]

    def take(self, count: int) -> None:
        """Consume *count* of the bytes that `peek` returned."""
        self._held = self._held[count:]

    def drain(self) -> None:
        """Hash the rest."""
        while self._held or self.peek(1):
            self._held = memoryview(b"")


def _type_of(head: bytes) -> str:
    return GZIP_TYPE if head[:2] == _MAGIC else ZSTD_TYPE if _is_frame(head) else TAR_TYPE


def _not_a(unit: str, start: int) -> str:
    return (
        f"trailing data at byte {start}: not a {unit}" if start else f"the blob does not begin with a {unit}"
    )


def _is_frame(head: bytes) -> bool:
    return head == _FRAME or (head[1:] == _SKIPPED and head[0] >> 4 == 5)


def _plain(source: _BlobReader) -> Iterator[bytes]:
    while piece := source.peek(_OUT):
        source.take(len(piece))
        yield bytes(piece)


def _inflated(source: _BlobReader) -> Iterator[bytes]:
    while piece := source.peek(_FIRST):
        start = source.position
        if bytes(piece[:2]) != _MAGIC:
            raise _Broken(_not_a("gzip member", start))
        try:
            yield from _member(source, piece)
        except _ISAL_ERROR as error:
            raise _Broken(f"the gzip member at byte {start} is damaged: {error}") from error


def _member(source: _BlobReader, piece: memoryview) -> Iterator[bytes]:
    start = source.position
    inflater = isal_zlib.decompressobj(wbits=31)  # 31: gzip, with its CRC and size checked
    while True:
        out = inflater.decompress(piece, _OUT)
        yield out
        # A piece may fill more than one output buffer, and the decompressor may hold back output.
        while not inflater.eof and (inflater.unconsumed_tail or len(out) == _OUT):
            out = inflater.decompress(inflater.unconsumed_tail, _OUT)
            yield out
        if inflater.eof:
            source.take(len(piece) - len(inflater.unused_data))
            return
        source.take(len(piece))
        piece = source.peek(_NEXT)
        if not piece:
            raise _Broken(f"the gzip member at byte {start} is truncated")


def _decompressed(source: _BlobReader) -> Iterator[bytes]:
    while head := source.peek(4):
        start = source.position
        if not _is_frame(bytes(head)):
            raise _Broken(_not_a("zstd frame", start))
        try:
            yield from _frame(source)
        except zstd.ZstdError as error:
            raise _Broken(f"the zstd frame at byte {start} is damaged: {error}") from error


def _frame(source: _BlobReader) -> Iterator[bytes]:
    start = source.position
    decompressor = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})
    while piece := source.peek(_NEXT):
        yield decompressor.decompress(piece, _OUT)
        while not decompressor.eof and not decompressor.needs_input:
            yield decompressor.decompress(b"", _OUT)
        source.take(len(piece) - len(decompressor.unused_data))
        if decompressor.eof:
            return
    raise _Broken(f"the zstd frame at byte {start} is truncated")


_READERS = {GZIP_TYPE: _inflated, TAR_TYPE: _plain, ZSTD_TYPE: _decompressed}


class TarInspector:
    """Call `inspect` once; `paths` then has the paths of the tar."""

    def __init__(self) -> None:
        self.paths = LayerPaths()
        self._faults: list[str] = []
        self._more_faults = 0

    def faults(self) -> tuple[str, ...]:
        """The first twenty faults, and a line with the number of further ones."""
        more = (f"and {self._more_faults} more faults",) if self._more_faults else ()
        return (*self._faults, *more)

    def inspect(self, pieces: Iterable[bytes]) -> None:
        """Read *pieces* up to the first unreadable header; exceptions of *pieces* are not caught."""
        try:
            for entry in TarReader(pieces, report=self._fault):
                for text in self.paths.add(entry):
                    self._fault(text)
                self._check_rights(entry)
        except DamagedTar as error:
            self._fault(str(error))

    def _fault(self, text: str) -> None:
        if len(self._faults) < _FAULT_LIMIT:
            self._faults.append(text)
        else:
            self._more_faults += 1

    def _check_rights(self, entry: TarEntry) -> None:
        path = entry.path
        if entry.mode & ~0o7777:
            self._fault(f"{path}: mode {entry.mode:o} has more than permission bits")
        if entry.kind == "file" and entry.mode & 0o002:
            self._fault(f"{path}: mode {entry.mode:o} is world-writable")
        if max(entry.uid, entry.gid) >= _OWNER_LIMIT:
            self._fault(f"{path}: owner {entry.uid}:{entry.gid} is above the ids that rootless engines map")
