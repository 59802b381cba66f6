"""Writes a `tar+gzip` layer in one pass, which also computes its digest and diff_id.

Headers, padding and generated files are collected in gzip members, stored or, in a layer with packed headers,
compressed by the pinned encoder. Data that is already compressed is copied: a deflate stream gets the
header and trailer of a gzip member, whole gzip members stay unchanged. The caller passes the data in both
forms, compressed and uncompressed.

A layer that was made before (`recorded`) is rebuilt without inflating or hashing the content: if the blob
has the recorded digest, its tar has the recorded diff_id.

A header of a gzip member (RFC 1952) has no name, comment, extra field or time: some readers fail on the first
three, and a digest must not depend on the time. `stored` writes stored blocks, which do not depend on the
version of a compressor.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from isal import isal_zlib

from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob
from torchkiln.oci import tar
from torchkiln.oci.encode import deflated

_GATHER = 1 << 20  # most gathered bytes; limits memory
HEADER = b"\x1f\x8b\x08\x00" + b"\x00" * 4 + b"\x00\xff"  # deflate, no flags, no time, OS unknown
_BLOCK = 0xFFFF  # most bytes of a stored block


class NotCompressible(Exception):
    """A layer cannot be read to its end, or has a different length than expected."""


class Collision(Exception):
    """Two different files have the same path."""


class LayerWriter:
    """Writes one layer to *out*. Every folder is written once, before its content, with mode 0755.

    A file may be added twice if it is the same: several of NVIDIA's wheels contain `nvidia/__init__.py`.

    :param recorded: the layer as it was made before. Then content is neither needed nor compared, and the
        caller checks whether `finish` returns the same blob.
    :param packed: compress headers, padding and generated files; headers and padding are 600 bytes a file.
    """

    def __init__(
        self, out: BinaryIO, *, mtime: int, recorded: Blob | None = None, packed: bool = False
    ) -> None:
        self._out = out
        self._mtime = mtime
        self._member = _packed if packed else stored
        self.recorded = recorded
        self._blob = hashlib.sha256()
        self._tar = hashlib.sha256()
        self._size = self._unpacked = 0
        self._plain: list[bytes] = []
        self._gathered = 0
        self._folders: set[str] = set()
        self._files: dict[str, tuple[int, bytes]] = {}  # path → mode, SHA-256

    def file(self, path: str, mode: int, data: bytes) -> None:
        """Add a file with the content *data*.

        :raises Collision: a different file has this path.
        """
        if not self._is_new(path, mode, hashlib.sha256(data).digest()):
            return
        self._gather(tar.header(path, mode=mode, size=len(data), mtime=self._mtime))
        self._gather(data)
        self._gather(tar.padding(len(data)))

    @contextmanager
    def entry(self, path: str, mode: int, *, size: int, crc: int) -> Iterator[Member]:
        """Add a file of *size* bytes with CRC-32 *crc*; the body of the `with` statement passes its pieces.

        :raises Collision: a different file has this path (raised when the `with` statement ends).
        """
        member = Member(self, silent=path in self._files)
        if not member.silent:
            self._enter_folders(path)
            self._gather(tar.header(path, mode=mode, size=size, mtime=self._mtime))
        yield member
        self._is_new(path, mode, member.sha256.digest())
        if member.open:
            self._emit(trailer(crc, size))
        if not member.silent:
            self._gather(tar.padding(size))

    def finish(self) -> Blob:
        """Close the archive. With *recorded*, the diff_id and unpacked size are those of *recorded*."""
        self._gather(tar.END)
        self._flush()
        diff_id, unpacked = Digest(f"sha256:{self._tar.hexdigest()}"), self._unpacked
        if self.recorded:
            diff_id, unpacked = self.recorded.diff_id, self.recorded.unpacked
        return Blob(
            digest=Digest(f"sha256:{self._blob.hexdigest()}"),
            diff_id=diff_id,
            size=self._size,
            unpacked=unpacked,
        )

    def _is_new(self, path: str, mode: int, sha256: bytes) -> bool:
        """Record the file; False if the same file was added before."""
        earlier = self._files.get(path)
        if path in self._folders or (earlier not in (None, (mode, sha256)) and not self.recorded):
            raise Collision(path)
        if earlier:
            return False
        self._enter_folders(path)
        self._files[path] = (mode, sha256)
        return True

    def _enter_folders(self, path: str) -> None:
        if path.rpartition("/")[0] in self._folders:
            return
        for folder in tar.parents(path):
            if folder in self._files:
                raise Collision(folder)
            if folder not in self._folders:
                self._folders.add(folder)
                self._gather(tar.header(folder, mode=0o755, mtime=self._mtime, directory=True))

    def _gather(self, data: bytes) -> None:
        if data:
            self._plain.append(data)
            self._gathered += len(data)
            if self._gathered >= _GATHER:
                self._flush()

    def _flush(self) -> None:
        if self._plain:
            plain = b"".join(self._plain)
            self._plain, self._gathered = [], 0
            self._account(plain)
            self._emit(self._member(plain))

    def _account(self, content: bytes) -> None:
        if not self.recorded:
            self._tar.update(content)
            self._unpacked += len(content)

    def _emit(self, data: bytes | memoryview) -> None:
        self._out.write(data)
        self._blob.update(data)
        self._size += len(data)


def _packed(data: bytes) -> bytes:
    """*data* compressed, as one gzip member."""
    return b"".join((HEADER, deflated(data), trailer(isal_zlib.crc32(data), len(data))))


class Member:
    """A file being written: its pieces are all `plain`, all `spliced` or all `packed`.

    If it is *silent*, it is only hashed: the layer already has a file of this path.
    """

    def __init__(self, layer: LayerWriter, *, silent: bool) -> None:
        self._layer = layer
        self.silent = silent
        self.open = False
        self.sha256 = hashlib.sha256()

    def plain(self, content: bytes) -> None:
        """Add the next bytes, of which no compressed form exists."""
        self._hash(content)
        if not self.silent:
            self._layer._gather(content)

    def spliced(self, deflate: bytes, content: bytes) -> None:
        """Add the next bytes of the deflate stream unchanged, with the content that they inflate to.

        For a recorded layer *content* is empty.
        """
        self._hash(content)
        if self.silent:
            return
        layer = self._layer
        if not self.open:
            layer._flush()
            layer._emit(HEADER)
            self.open = True
        if deflate:
            layer._emit(deflate)
        layer._account(content)

    def packed(self, member: bytes, content: bytes) -> None:
        """Add the next bytes as a gzip *member*, with its *content*, which is always hashed."""
        self.sha256.update(content)
        if not self.silent:
            self._layer._flush()
            self._layer._emit(member)
            self._layer._account(content)

    def _hash(self, content: bytes) -> None:
        if not self._layer.recorded:
            self.sha256.update(content)


def trailer(crc: int, size: int) -> bytes:
    """The end of a member whose content has *crc* (CRC-32) and *size* bytes."""
    return struct.pack("<II", crc, size & 0xFFFFFFFF)


def stored(data: bytes | memoryview) -> bytes:
    """*data* as one gzip member, uncompressed."""
    return b"".join((HEADER, *_stored_blocks(data), trailer(isal_zlib.crc32(data), len(data))))


def _stored_blocks(data: bytes | memoryview) -> Iterator[bytes | memoryview]:
    """*data* as stored deflate blocks: at least one, and the last one is marked."""
    view = memoryview(data)
    for start in range(0, max(len(view), 1), _BLOCK):
        part = view[start : start + _BLOCK]
        yield struct.pack("<BHH", start + _BLOCK >= len(view), len(part), len(part) ^ 0xFFFF)
        yield part
