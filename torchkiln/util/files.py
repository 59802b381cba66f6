"""Writes files atomically and deletes folders safely.

A large file is written without filling the page cache: the kernel caches every page of it, though wheels and
layers are rarely read again soon. Fresh pages are slow: 3.6 s of CPU per GB on a virtual machine whose host
has to allocate them, against 0.5 s for reused pages (docs/adr/0011).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import glob
import io
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_AT_FDCWD = -100  # from linux/fcntl.h
_RENAME_EXCHANGE = 2  # from linux/fs.h
_OCTAL = re.compile(rb"\\([0-7]{3})")  # mountinfo's escapes of spaces
STEP = 8 << 20
_LAG = 64 << 20  # bytes; pages that were written so many bytes before are probably on the disk


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write *data* to *path* through a temporary file beside it; creates the parent folder.

    :raises OSError: the folder cannot be written or the disk is full; *path* is then unchanged.
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
    """Create the folder *path* and its missing parents with mode 0700, regardless of the umask.

    :raises OSError: it cannot be created.
    """
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            with contextlib.suppress(FileExistsError):  # another process has just created it
                folder.mkdir(mode=0o700)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    return path


def pretty_json(value: Any) -> bytes:
    """*value* as JSON in the format of committed files: indented, ASCII, a final newline, keys in order."""
    return (json.dumps(value, indent=2) + "\n").encode()


def rows_json(values: Mapping[str, Any]) -> bytes:
    """Like `pretty_json`, but each object in a list is on one line, and so is a list without objects."""
    lines = []
    for key, value in values.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            text = "[\n" + ",\n".join(f"    {json.dumps(row)}" for row in value) + "\n  ]"
        elif isinstance(value, list):
            text = json.dumps(value)
        else:
            text = json.dumps(value, indent=2).replace("\n", "\n  ")
        lines.append(f"  {json.dumps(key)}: {text}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def remove_tree(path: Path) -> None:
    """Delete a file or a folder, regardless of its permissions; no error if it does not exist.

    If a file system is mounted in it, nothing is deleted.
    """
    if path.is_symlink() or not path.is_dir():
        with contextlib.suppress(OSError):
            path.unlink()
        return
    if mounted_below(path):
        return
    if os.geteuid() != 0:
        for folder, _, _ in os.walk(path):  # top down: a folder becomes readable before it is listed
            for entry in os.scandir(folder):
                if entry.is_dir(follow_symlinks=False):
                    os.chmod(entry.path, 0o700)
    shutil.rmtree(path, ignore_errors=True)


def mounted_below(path: Path) -> list[str]:
    """The mount points at *path* and below, including bind mounts of the same file system."""
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:  # not Linux, where torchkiln mounts nothing
        return []
    top = os.fsencode(os.path.realpath(path))
    places = [_OCTAL.sub(lambda found: bytes([int(found[1], 8)]), line.split(b" ")[4]) for line in lines]
    return [os.fsdecode(place) for place in places if place == top or place.startswith(top + b"/")]


@contextlib.contextmanager
def replacing(target: Path, *, folder: bool = False, over: bool = False) -> Iterator[Path]:
    """A temporary file or *folder* beside *target* that replaces it if the block ends without an exception.

    With *over*, the new folder also replaces a folder *target* that is not empty.

    Temporary files that killed writers of *target* left are deleted first; a running writer locks its own.

    :raises OSError: the disk is full, or the parent cannot be written; *target* is then unchanged.
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
            if over and target.is_dir() and not target.is_symlink():
                exchange(temporary, target)
            else:
                os.replace(temporary, target)
    finally:
        remove_tree(temporary)


def exchange(one: Path, other: Path) -> None:
    """Exchange the names of two folders; atomic if the file system supports it (NFS does not).

    :raises OSError: a folder cannot be renamed; both then have their old names.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        names = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other))
        if libc.renameat2(*names, _RENAME_EXCHANGE) == 0:
            return
        if (code := ctypes.get_errno()) not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(code, os.strerror(code), str(other))
    aside = one.with_name(f"{one.name}.{secrets.token_hex(4)}")
    os.rename(other, aside)
    try:
        os.rename(one, other)
    except OSError:
        os.rename(aside, other)
        raise
    os.rename(aside, one)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock on *path*; raises OSError if another process holds it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def tree_size(root: Path) -> tuple[int, int]:
    """Bytes and number of the files below *root*; links are not followed, hard links add bytes once."""
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


"""Bytes that are written or read between two calls of posix_fadvise."""


class PassingFile(io.FileIO):
    """A file whose written pages are flushed at once and dropped from the page cache soon after."""

    def write(self, data: Any) -> int:
        """As in `io.FileIO`."""
        count = super().write(data) or 0
        end = self.tell()
        for start in range((end - count) // STEP * STEP, end // STEP * STEP, STEP):
            forget(self.fileno(), start, STEP)  # the kernel starts to write these pages to the disk
            forget(self.fileno(), start - _LAG, STEP)
        return count


def forget(file: int, start: int, count: int) -> None:
    """Drop the cached pages of *count* bytes of *file* from *start* on; nothing if *start* is negative."""
    if start >= 0:
        os.posix_fadvise(file, start, count, os.POSIX_FADV_DONTNEED)
