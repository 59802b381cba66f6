"""Checks size and SHA-256 of a download against the lock, and deletes a file that differs."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Protocol, TypeVar

from torchkiln.errors import BadWheel
from torchkiln.model.progress import Transfer

_CHUNK = 1 << 20


class LockedFile(Protocol):
    @property
    def filename(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def sha256(self) -> str: ...


F = TypeVar("F", bound=LockedFile)
F_contra = TypeVar("F_contra", bound=LockedFile, contravariant=True)


class FetchFile(Protocol[F_contra]):
    """`Downloader.fetch`."""

    def __call__(self, file: F_contra, path: Path, transfer: Transfer, /) -> None: ...


def fetch_verified(fetch: FetchFile[F], file: F, part: Path, transfer: Transfer) -> bool:
    """*fetch* the file to *part* and verify it; returns False if it was cancelled.

    :raises BadWheel: size or SHA-256 differ from the lock; *part* is deleted.
    """
    for resumed in (part.exists(), False):
        fetch(file, part, transfer)
        if transfer.cancelled():
            return False
        try:
            verify(file, part)
            break
        except BadWheel:
            part.unlink()
            if not resumed:  # the part from an earlier run may be damaged: download the whole file once more
                raise
    return True


def verify(locked: LockedFile, path: Path) -> None:
    """Check size and SHA-256 of the file at *path*.

    :raises BadWheel: size or SHA-256 differ from the lock.
    """
    with path.open("rb") as file:
        if (size := os.fstat(file.fileno()).st_size) != locked.size:
            raise BadWheel(locked.filename, f"size mismatch: {size} bytes, the lock has {locked.size}")
        digest = hashlib.sha256()
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    if (found := digest.hexdigest()) != locked.sha256:
        why = f"checksum mismatch: sha256 {found} on the index, {locked.sha256} in the lock"
        raise BadWheel(locked.filename, why)
