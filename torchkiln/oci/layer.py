"""Files → a `tar+gzip` layer, written once, hashed on the way: digest and diff_id in one pass.

What is small and ours (headers, paddings, generated files) is gathered into stored members. What comes
compressed already is copied into a gzip member of its own: the caller hands over deflate bytes and, beside
them, what they inflate to. Nothing is compressed here.

A layer that was made before, and `recorded`, is made again without looking inside: if the blob has the
recorded digest, it is that blob to the last byte, and so is its tar. Then nobody need inflate or hash that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob
from torchkiln.oci import gzip, tar

_GATHER = 1 << 20  # flush gathered plain bytes beyond this many: bounds memory


class NotCompressible(Exception):
    """The source of a layer cannot be read to its end, or has another length than was said."""


class Collision(Exception):
    """Two files of different content at one path."""


class LayerWriter:
    """Writes one layer to *out*. Every folder is written once, before what is in it, with mode 0755.

    A file may come twice if it is the same: several of NVIDIA's wheels carry one `nvidia/__init__.py`.

    :param recorded: what this layer was when it was last made. Then contents are neither asked for nor
        compared, and the caller sees whether `finish` gives the same again.
    """

    def __init__(self, out: BinaryIO, *, mtime: int, recorded: Blob | None = None) -> None:
        self._out = out
        self._mtime = mtime
        self.recorded = recorded
        self._blob = hashlib.sha256()
        self._tar = hashlib.sha256()
        self._size = self._unpacked = 0
        self._plain: list[bytes] = []
        self._gathered = 0
        self._folders: set[str] = set()
        self._files: dict[str, tuple[int, bytes]] = {}  # path → mode, SHA-256

    def file(self, path: str, mode: int, data: bytes) -> None:
        """A whole file, kept uncompressed.

        :raises Collision: another file is there.
        """
        if not self._is_new(path, mode, hashlib.sha256(data).digest()):
            return
        self._gather(tar.header(path, mode=mode, size=len(data), mtime=self._mtime))
        self._gather(data)
        self._gather(tar.padding(len(data)))

    @contextmanager
    def entry(self, path: str, mode: int, *, size: int, crc: int) -> Iterator[Member]:
        """A file of *size* bytes with CRC-32 *crc*, handed over piece by piece inside the block.

        :raises Collision: another file is there (known when all of this one has gone by).
        """
        member = Member(self, silent=path in self._files)
        if not member.silent:
            self._enter_folders(path)
            self._gather(tar.header(path, mode=mode, size=size, mtime=self._mtime))
        yield member
        self._is_new(path, mode, member.sha256.digest())
        if member.open:
            self._emit(gzip.trailer(crc, size))
        if not member.silent:
            self._gather(tar.padding(size))

    def finish(self) -> Blob:
        """Close the archive. Of a recorded layer the tar's digest and size are the recorded ones."""
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
        """Note the file; False if the very same is there already."""
        there = self._files.get(path)
        if path in self._folders or (there not in (None, (mode, sha256)) and not self.recorded):
            raise Collision(path)
        if there:
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
            self._emit(gzip.stored(plain))

    def _account(self, content: bytes) -> None:
        """*content* goes into the tar."""
        if not self.recorded:
            self._tar.update(content)
            self._unpacked += len(content)

    def _emit(self, data: bytes | memoryview) -> None:
        self._out.write(data)
        self._blob.update(data)
        self._size += len(data)


class Member:
    """One file being written: all its pieces `plain`, or all of them `spliced`. A silent one only hashes."""

    def __init__(self, layer: LayerWriter, *, silent: bool) -> None:
        self._layer = layer
        self.silent = silent
        self.open = False
        self.sha256 = hashlib.sha256()

    def plain(self, content: bytes) -> None:
        """The next bytes, kept uncompressed."""
        self._hash(content)
        if not self.silent:
            self._layer._gather(content)

    def spliced(self, deflate: bytes, content: bytes) -> None:
        """The next bytes of the deflate stream, copied as they stand, and what they inflate to.

        Into a recorded layer they go without *content*.
        """
        self._hash(content)
        if self.silent:
            return
        layer = self._layer
        if not self.open:
            layer._flush()
            layer._emit(gzip.HEADER)
            self.open = True
        if deflate:
            layer._emit(deflate)
        layer._account(content)

    def _hash(self, content: bytes) -> None:
        if not self._layer.recorded:
            self.sha256.update(content)
