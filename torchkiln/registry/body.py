"""Blob → the bytes of its file, hashed while they go: the last piece of a damaged one is never handed out.

`Held` is the same of what lies in memory.
"""

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
class Blob:
    """A file that the registry is to have."""

    digest: Digest
    path: Path
    size: int

    @property
    def what(self) -> str:
        """For errors."""
        return f"blob {self.digest[:19]}"

    def pieces(self, start: int) -> Iterator[bytes]:
        """The file from *start* on; the last piece only when all of it, from its first byte, was hashed.

        :raises VerificationFailed: it is not what its name says.
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
                f"{self.path}: the content is not what its name says; the registry has nothing whole of it",
                hint=REBUILD,
            )
        if held:
            yield held


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A small document in memory that the registry is to have."""

    digest: Digest
    data: bytes = field(repr=False)

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def what(self) -> str:
        """For errors."""
        return f"blob {self.digest[:19]}"

    def pieces(self, start: int) -> Iterator[bytes]:
        """From *start* on, in one."""
        yield self.data[start:]


@dataclass(frozen=True, slots=True)
class Rest:
    """What is left to send, with its length; each reading of it starts anew."""

    size: int
    pieces: Callable[[], Iterator[bytes]]

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[bytes]:
        return self.pieces()
