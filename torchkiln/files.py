"""Writing files so that a reader sees the old one or the new one, never a part."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write *data* to *path* by way of a temporary neighbour; the parent folder is made.

    :raises OSError: the folder cannot be written or the disk is full; *path* is then as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        temporary.write_bytes(data)
        temporary.chmod(mode)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def pretty_json(value: Any) -> bytes:
    """The one JSON form of committed files: indented, ASCII, a newline at the end; key order kept."""
    return (json.dumps(value, indent=2) + "\n").encode()


def remove_tree(path: Path) -> None:
    """Delete a file or a folder, whatever permissions an image gave it; no error if it is not there."""
    if path.is_symlink() or not path.is_dir():
        with contextlib.suppress(OSError):
            path.unlink()
        return
    if os.geteuid() != 0:
        for folder, _, _ in os.walk(path):  # top down: a folder is opened up before it is listed
            for entry in os.scandir(folder):
                if entry.is_dir(follow_symlinks=False):
                    os.chmod(entry.path, 0o700)
    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def replacing(target: Path, *, folder: bool = False) -> Iterator[Path]:
    """A new neighbour of *target*, a file or a *folder*, that gets its name at the end, if all went well.

    What killed writers of *target* left, gigabytes perhaps, goes first: who lives holds a lock on its own.

    :raises OSError: the disk is full, or the parent cannot be written; *target* is then as it was.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f".{glob.escape(target.name)}.*.????????"):
        with contextlib.suppress(OSError), _locked(left):
            remove_tree(left)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        temporary.mkdir() if folder else temporary.touch()
        with _locked(temporary):
            yield temporary
            os.replace(temporary, target)
    finally:
        remove_tree(temporary)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """:raises OSError: another holds it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def tree_size(root: Path) -> tuple[int, int]:
    """Bytes and number of the files below *root*, links not followed, hard links counted once."""
    seen: set[tuple[int, int]] = set()
    size = count = 0
    for folder, _, names in os.walk(root):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found = os.lstat(os.path.join(folder, name))
                count += 1
                if (found.st_dev, found.st_ino) not in seen:
                    size += found.st_size
                    if found.st_nlink > 1:
                        seen.add((found.st_dev, found.st_ino))
    return size, count
