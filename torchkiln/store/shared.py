"""Copies blobs and wheels from and to a cache folder that several users can write.

Files in it may change at any time, so they are never used in place: a file is copied, hashed while it is
copied, and the copy is used if its SHA-256 is right. No symbolic link is followed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from torchkiln.util.files import named
from torchkiln.util.strict_json import open_plain

VARIABLE = "TORCHKILN_CACHE_SHARED"
_READ = 1 << 20
_LARGEST = 20_000_000_000  # bytes of a file of unknown size; torch's wheel has 821 MB
_KINDS = ("blobs", "wheels")  # files named by their hash; the other folders are only in each user's own cache


def shared_folder() -> Path | None:
    """The folder in $TORCHKILN_CACHE_SHARED."""
    given = os.environ.get(VARIABLE)
    return named(Path(given).absolute()) if given else None


def take(folder: Path, place: Path, sha256: str, size: int, into: Path) -> bool:
    """Copy the file at *place* (relative) in *folder* to *into*; returns whether it is there and intact.

    :param size: bytes; 0: not known.
    :raises OSError: *into* cannot be written.
    """
    try:
        source = open_plain(folder / place, follow=False)
    except OSError:
        return False
    with source:
        found = os.fstat(source.fileno())
        if found.st_size > _LARGEST or (size and found.st_size != size):
            return False
        hasher, left = hashlib.sha256(), found.st_size
        out = os.open(into, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(out, "wb") as sink:
            while left:
                try:
                    data = source.read(min(_READ, left))
                except OSError:
                    break
                if not data:
                    break
                left -= len(data)
                hasher.update(data)
                sink.write(data)
        return not left and hasher.hexdigest() == sha256


def offer(folder: Path, place: Path, file: Path) -> None:
    """Copy the verified *file* to *place* (relative) in *folder* unless it exists; errors are ignored."""
    if place.parts[0] not in _KINDS or not folder.is_dir():
        return
    with contextlib.suppress(OSError), _opened(folder, place.parent) as parent:
        if place.name in os.listdir(parent):
            return
        temporary = f".{secrets.token_hex(8)}"
        try:
            out = os.open(
                temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444, dir_fd=parent
            )
            with open(out, "wb") as sink, file.open("rb") as source:
                shutil.copyfileobj(source, sink, _READ)
            os.link(temporary, place.name, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=parent)


@contextlib.contextmanager
def _opened(folder: Path, below: Path) -> Iterator[int]:
    """A descriptor of the folder *below* (relative) in *folder*, created if missing."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    here = os.open(folder, flags)
    try:
        for part in below.parts:
            new = False
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=here)
                new = True
            inner = os.open(part, flags | os.O_NOFOLLOW, dir_fd=here)
            if new:  # the same permissions as the shared folder
                os.fchmod(inner, stat.S_IMODE(os.fstat(here).st_mode))
            os.close(here)
            here = inner
        yield here
    finally:
        os.close(here)
