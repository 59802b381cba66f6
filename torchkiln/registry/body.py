"""Reads blobs to upload. A file is hashed while it is sent; the last piece of a damaged file is not sent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.oci.image import digest_of
from torchkiln.util.strict_json import open_plain

_PIECE = 1 << 20
REBUILD = "run: torchkiln cache verify --repair; then build the image again"


@dataclass(frozen=True, kw_only=True, slots=True)
class Blob:
    """A blob to upload: a file, or a small document in memory."""

    digest: Digest
    size: int
    source: Path | bytes = field(repr=False)

    @property
    def what(self) -> str:
        """The name of the blob in error messages."""
        return f"blob {self.digest[:19]}"

    def pieces(self, start: int) -> Iterator[bytes]:
        """The blob from *start* on; the last piece of a file only after the hash of the whole was checked.

        :raises VerificationFailed: size or digest of the file do not match.
        """
        if isinstance(self.source, bytes):
            yield self.source[start:]
            return
        digest, at, held = hashlib.sha256(), 0, b""
        try:
            with open_plain(self.source, follow=False) as file:
                while piece := file.read(min(_PIECE, start - at) if at < start else _PIECE):
                    digest.update(piece)
                    at += len(piece)
                    if at > start:
                        if held:
                            yield held
                        held = piece
        except OSError as error:
            raise VerificationFailed(f"{self.source}: {error.strerror}", hint=REBUILD) from error
        if at != self.size or f"sha256:{digest.hexdigest()}" != self.digest:
            raise VerificationFailed(
                f"{self.source}: checksum mismatch; the upload was not completed", hint=REBUILD
            )
        if held:
            yield held


def document(data: bytes) -> Blob:
    """The blob of a small document."""
    return Blob(digest=digest_of(data), size=len(data), source=data)
