"""Reads blobs to upload. A file is hashed while it is sent; the last piece of a damaged file is not sent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.util.strict_json import open_plain

_PIECE = 1 << 20
REBUILD = "run: torchkiln cache verify --repair; then build the image again"


@dataclass(frozen=True, kw_only=True, slots=True)
class FileBlob:
    """A file to upload."""

    digest: Digest
    path: Path
    size: int

    @property
    def what(self) -> str:
        """The name of the blob in error messages."""
        return f"blob {self.digest[:19]}"

    def pieces(self, start: int) -> Iterator[bytes]:
        """The file from *start* on; the last piece only after the hash of the whole file was checked.

        :raises VerificationFailed: size or digest do not match.
        """
        digest, at, held = hashlib.sha256(), 0, b""
        try:
            with open_plain(self.path, follow=False) as file:
                while piece := file.read(min(_PIECE, start - at) if at < start else _PIECE):
                    digest.update(piece)
                    at += len(piece)
                    if at > start:
                        if held:
                            yield held
                        held = piece
        except OSError as error:
            raise VerificationFailed(f"{self.path}: {error.strerror}", hint=REBUILD) from error
        if at != self.size or f"sha256:{digest.hexdigest()}" != self.digest:
            raise VerificationFailed(
                f"{self.path}: checksum mismatch; the upload was not completed",
                hint=REBUILD,
            )
        if held:
            yield held


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryBlob:
    """A small document in memory to upload."""

    digest: Digest
    data: bytes = field(repr=False)

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def what(self) -> str:
        """The name of the blob in error messages."""
        return f"blob {self.digest[:19]}"

    def pieces(self, start: int) -> Iterator[bytes]:
        """The document from *start* on, in one piece."""
        yield self.data[start:]


@dataclass(frozen=True, slots=True)
class Remainder:
    """The part of a blob that is not sent yet; can be iterated several times."""

    size: int
    pieces: Callable[[], Iterator[bytes]]

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[bytes]:
        return self.pieces()
