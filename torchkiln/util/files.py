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

_HERE = -100  # AT_FDCWD from linux/fcntl.h
_RENAME_EXCHANGE = 2  # from linux/fs.h
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OCTAL = re.compile(rb"\\([0-7]{3})")  # mountinfo's escapes of spaces
STEP = 8 << 20  # bytes that are written or read between two calls of posix_fadvise
_LAG = 64 << 20  # bytes; pages that were written so many bytes before are probably on the disk


def named(path: Path) -> Path:
    """*path*, which the user wrote, with its symbolic links resolved; *path* itself if it has none."""
    real = os.path.realpath(path)
    return path if real == os.path.abspath(path) else Path(real)


@contextlib.contextmanager
def folder_at(path: Path, *, make: int = 0) -> Iterator[Path]:
    """A path of the folder *path* that stays the same folder; *make*: create missing folders with this mode.

    No symbolic link in *path* is followed, even if it replaces a folder at this moment: folders of a project,
    a layout or a bundle are not trusted. `named` resolves the links in a path that the user wrote.

    :raises OSError: it cannot be opened or created, or a part of *path* is a symbolic link.
    """
    place = Path("/" if path.is_absolute() else ".")
    here = os.open(place, _FOLDER)
    try:
        for part in path.parts[path.is_absolute() :]:
            place /= part
            try:
                if make and not os.access(part, os.F_OK, dir_fd=here, follow_symlinks=False):
                    with contextlib.suppress(FileExistsError):  # another process has just created it
                        os.mkdir(part, make, dir_fd=here)
                above, here = here, os.open(part, _FOLDER, dir_fd=here)
                os.close(above)
            except OSError as error:
                if place.is_symlink():
                    raise OSError(errno.ELOOP, f"{place} is a symbolic link") from None
                error.filename = str(place)
                raise
        fixed = Path(f"/proc/self/fd/{here}")
        try:
            yield fixed if fixed.is_dir() else path
        except OSError as error:
            if error.filename:
                error.filename = str(error.filename).replace(str(fixed), str(path))
            raise
    finally:
        os.close(here)


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write *data* to *path*, as `replacing` does."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)
        temporary.chmod(mode)


def delete(path: Path) -> None:
    """Delete the file *path* if it exists (`folder_at`)."""
    with contextlib.suppress(FileNotFoundError), folder_at(path.parent) as folder:
        (folder / path.name).unlink()


def private_folder(path: Path) -> Path:
    """Create the folder *path* and its missing parents (`folder_at`) for this user alone."""
    with folder_at(path, make=0o700):
        return path


def pretty_json(value: Any) -> bytes:
    """*value* as JSON in the format of committed files: indented, ASCII, a final newline, keys in order."""
    return (json.dumps(value, indent=2) + "\n").encode()


def rows_json(values: Mapping[str, Any]) -> bytes:
    """Like `pretty_json`, but each object in a list is on one line, and so is a list without objects."""
    lines = []
    for key, value in values.items():
        text = json.dumps(value, indent=None if isinstance(value, list) else 2).replace("\n", "\n  ")
        if isinstance(value, list) and value and isinstance(value[0], dict):
            text = "[\n" + ",\n".join(f"    {json.dumps(row)}" for row in value) + "\n  ]"
        lines.append(f"  {json.dumps(key)}: {text}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def remove_tree(path: Path) -> None:
    """Delete a file or a folder, regardless of its permissions; no error if it does not exist.

    If a file system is mounted in it, nothing is deleted.
    """
    if path.is_symlink() or not path.is_dir():
        with contextlib.suppress(OSError):
            path.unlink()
    elif not mounted_below(path):
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

    :raises OSError: the disk is full, or the parent (`folder_at`) cannot be written; *target* is unchanged.
    """
    with folder_at(target.parent, make=0o777) as parent:
        target = parent / target.name
        for left in parent.glob(f".{glob.escape(target.name)}.*.????????"):
            with contextlib.suppress(OSError), locked(left):
                remove_tree(left)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            temporary.mkdir() if folder else temporary.touch()
            with locked(temporary):
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
        if not libc.renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _RENAME_EXCHANGE):
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
def locked(path: Path) -> Iterator[None]:
    """Hold a lock on *path*; raises OSError if another process holds it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def tree_size(root: Path) -> tuple[int, int]:
    """Bytes and number of the files below *root*; links are not followed, hard links add bytes once."""
    sizes: dict[tuple[int, int], int] = {}
    count = 0
    for folder, _, names in os.walk(root):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found = os.lstat(os.path.join(folder, name))
                count += 1
                sizes[found.st_dev, found.st_ino] = found.st_size
    return sum(sizes.values()), count


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
