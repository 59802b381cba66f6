"""Writing files so that a reader sees the old one or the new one, never a part."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_OCTAL = re.compile(rb"\\([0-7]{3})")  # how mountinfo writes spaces


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


def private_folder(path: Path) -> Path:
    """*path* as a folder; it and its parents, where they are made, are open to us alone, whatever the umask.

    :raises OSError: it cannot be made.
    """
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            with contextlib.suppress(FileExistsError):  # another process was faster
                folder.mkdir(mode=0o700)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    return path


def pretty_json(value: Any) -> bytes:
    """The one JSON form of committed files: indented, ASCII, a newline at the end; key order kept."""
    return (json.dumps(value, indent=2) + "\n").encode()


def remove_tree(path: Path) -> None:
    """Delete a file or a folder, whatever permissions an image gave it; no error if it is not there.

    What is mounted somewhere below is not ours: then all of it stays.
    """
    if path.is_symlink() or not path.is_dir():
        with contextlib.suppress(OSError):
            path.unlink()
        return
    if mounted_below(path):
        return
    if os.geteuid() != 0:
        for folder, _, _ in os.walk(path):  # top down: a folder is opened up before it is listed
            for entry in os.scandir(folder):
                if entry.is_dir(follow_symlinks=False):
                    os.chmod(entry.path, 0o700)
    shutil.rmtree(path, ignore_errors=True)


def mounted_below(path: Path) -> list[str]:
    """Where something is mounted at *path* or below it, bind mounts of the same file system too."""
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:  # not Linux: then nothing here mounts
        return []
    top = os.fsencode(os.path.realpath(path))
    places = [_OCTAL.sub(lambda found: bytes([int(found[1], 8)]), line.split(b" ")[4]) for line in lines]
    return [os.fsdecode(place) for place in places if place == top or place.startswith(top + b"/")]


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
