"""A layer blob -> LayerFacts: every digest computed anew, every tar header looked at. An oracle.

It shares no code with the modules that write layers, not even the table of compressions, so that it can judge
them; the tar's reader is the one that unpacks (`tar_reader`). Bounded memory: pieces of the blob, the names
of the layer, a score of faults.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from isal import isal_zlib

from torchkiln.oci.tar_reader import RATIO, most_unpacked
from torchkiln.oci.validate.tar import TarInspector

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

GZIP_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
TAR_TYPE = "application/vnd.oci.image.layer.v1.tar"
ZSTD_TYPE = "application/vnd.oci.image.layer.v1.tar+zstd"
LAYER_TYPES = (GZIP_TYPE, TAR_TYPE, ZSTD_TYPE)

_ISAL_ERROR = cast(type[Exception], isal_zlib.error)  # its stub calls the class an instance
_MAGIC = b"\x1f\x8b"
_FRAME = b"\x28\xb5\x2f\xfd"
_SKIPPED = b"\x2a\x4d\x18"  # behind a byte from 0x50 to 0x5f: a frame of zstd's that holds nothing
_WINDOW_LOG = 27  # 128 MiB: the most that zstd's own program takes unasked
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
        if media_type in LAYER_TYPES:
            found = _type_of(bytes(source.peek(4)))
            if found not in (TAR_TYPE, media_type):
                name = found.rpartition("+")[2]
                faults.append(f"wrong media type: {media_type!r}, but the blob is {name}")
            # What has no magic number is read as what it is called, which says what is there instead.
            read = _READERS[media_type if found == TAR_TYPE else found]

            def pieces(most: int) -> Iterator[bytes]:
                nonlocal size
                for piece in read(source):
                    unpacked.update(piece)
                    size += len(piece)
                    if size > most:
                        raise _Broken(f"it unpacks to more than {most} bytes, {RATIO} times its size")
                    yield piece

            content = pieces(most_unpacked(path.stat().st_size))
            try:
                tar.inspect(content)
                for _ in content:  # what is behind the first damage
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
        folders=frozenset(tar.names.folders),
        others=frozenset(tar.names.others),
        wants=tuple(tar.names.wants()),
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
        """The next bytes, at least the four of a magic number; fewer only at the end."""
        while len(self._held) < 4 and (more := self._file.read(_READ)):
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


def _type_of(head: bytes) -> str:
    """The media type that a blob with this *head* should have."""
    if head[:2] == _MAGIC:
        return GZIP_TYPE
    return ZSTD_TYPE if _is_frame(head) else TAR_TYPE


def _is_frame(head: bytes) -> bool:
    return head == _FRAME or (head[1:] == _SKIPPED and head[0] >> 4 == 5)


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


def _decompressed(source: _Source) -> Iterator[bytes]:
    """The content of all zstd frames, one behind the other."""
    while head := source.peek(4):
        start = source.position
        if not _is_frame(bytes(head)):
            where = "behind the last zstd frame" if start else "at the start"
            raise _Broken(f"trailing bytes: what is {where} (byte {start}) is no zstd frame")
        try:
            yield from _frame(source)
        except zstd.ZstdError as error:
            raise _Broken(f"the zstd frame at byte {start} is damaged: {error}") from error


def _frame(source: _Source) -> Iterator[bytes]:
    start = source.position
    decompressor = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})
    while piece := source.peek(_NEXT):
        yield decompressor.decompress(piece, _OUT)
        while not decompressor.eof and not decompressor.needs_input:
            yield decompressor.decompress(b"", _OUT)
        source.take(len(piece) - len(decompressor.unused_data))
        if decompressor.eof:
            return
    raise _Broken(f"the zstd frame at byte {start} is cut off")


_READERS = {GZIP_TYPE: _inflated, TAR_TYPE: _plain, ZSTD_TYPE: _decompressed}
