"""A file that arrived -> the locked one, or an error: nothing else is kept."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from torchkiln.errors import BadWheel

_CHUNK = 1 << 20
_OTHER = "the index serves another file than the lock names: its sha256 is {}, the lock has {}"


class LockedFile(Protocol):
    """What is fetched: a wheel, or an archive."""

    @property
    def filename(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def sha256(self) -> str: ...


F = TypeVar("F", bound=LockedFile)
F_contra = TypeVar("F_contra", bound=LockedFile, contravariant=True)


class Fetch(Protocol[F_contra]):
    """`Fetching.fetch`, or what stands for it in a test."""

    def __call__(
        self,
        wheel: F_contra,
        path: Path,
        *,
        on_progress: Callable[[int], None],
        cancelled: Callable[[], bool],
    ) -> None: ...


def fetch_verified(
    fetch: Fetch[F],
    wheel: F,
    part: Path,
    *,
    on_progress: Callable[[int], None],
    cancelled: Callable[[], bool] = lambda: False,
) -> bool:
    """*fetch* the file to *part*, and verify it; False: it was cancelled.

    :raises BadWheel: what is served is not what was locked; nothing is kept of it.
    """
    for resumed in (part.exists(), False):
        fetch(wheel, part, on_progress=on_progress, cancelled=cancelled)
        if cancelled():
            return False
        try:
            verify(wheel, part)
            break
        except BadWheel:
            part.unlink()
            if not resumed:  # what an earlier run left may be at fault: the server gets one more chance
                raise
    return True


def verify(wheel: LockedFile, path: Path) -> None:
    """Check size and SHA-256 of the file at *path*.

    :raises BadWheel: it is not the locked one.
    """
    with path.open("rb") as file:
        if (size := os.fstat(file.fileno()).st_size) != wheel.size:
            raise BadWheel(wheel.filename, f"{size} bytes, locked are {wheel.size}")
        digest = hashlib.sha256()
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != wheel.sha256:
        raise BadWheel(wheel.filename, _OTHER.format(digest.hexdigest(), wheel.sha256))
