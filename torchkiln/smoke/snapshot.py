"""Folder -> its files as bytes, read once and without following links; and bytes -> a clean, read-only copy.

What was digested is what runs: nobody can change a file between the two, and nothing gets into the copy that
was not read. A folder that holds anything but folders and plain files is refused by name.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from torchkiln.util.scratch import scratch

BYTECODE = "__pycache__"  # Python writes it beside sources: never read, never copied
_DEEPEST = 16  # folders below each other
_MOST = 5_000  # files and folders; our own suite has 70
_LARGEST = 8 << 20  # bytes of a file; our own largest has 9 kB
_TOTAL = 64 << 20  # bytes of all files together
# What Python imports or runs at its start besides *.py, and what no reviewer can read.
_COMPILED = (".pyc", ".pyo", ".pyd", ".so", ".dll", ".dylib", ".pth", ".egg", ".zip", ".whl", ".egg-link")


def read_tree(folder: Path) -> dict[str, bytes]:
    """Every file below *folder* by its path with slashes, in the order of the paths' parts.

    :raises OSError: it cannot be read.
    :raises ValueError: it holds what is no plain file, what Python could load and is no source, or too much.
    """
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found: dict[str, bytes] = {}
        left = _TOTAL
        for count, (path, data) in enumerate(_walk(root, "", _DEEPEST), start=1):
            left -= len(data or b"")
            if count > _MOST or left < 0:
                raise ValueError(f"more than {_MOST} files, or {_TOTAL} bytes, in one folder")
            if data is not None:
                found[path] = data
    finally:
        os.close(root)
    return dict(sorted(found.items(), key=lambda item: PurePosixPath(item[0]).parts))


def write_tree(files: Mapping[str, bytes], folder: Path) -> None:
    """*files* (of `read_tree`) in a new *folder*, which nobody can change by accident: all is read-only."""
    folder.mkdir()
    folders = {folder}
    for path, data in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        folders.update(folder / parent for parent in PurePosixPath(path).parents)
        place.write_bytes(data)
        place.chmod(0o444)
    for made in folders:
        made.chmod(0o755)  # whatever the umask: another user, in a container, reads it


@contextmanager
def copied(files: Mapping[str, bytes], name: str) -> Iterator[Path]:
    """*files* in a new folder *name*, below one that other users cannot enter, while the block runs.

    :raises ConfigError: other users can write the folder for temporary files.
    """
    with scratch(name) as private:
        write_tree(files, private / name)
        yield private / name


def _walk(descriptor: int, above: str, depth: int) -> Iterator[tuple[str, bytes | None]]:
    """(path, content) of what lies in an open folder and below; content is None for a folder."""
    if not depth:
        raise ValueError(f"{above!r}: more than {_DEEPEST} folders below each other")
    with os.scandir(descriptor) as listed:
        names = []
        for entry in listed:
            names.append(entry.name)
            if len(names) > _MOST:
                raise ValueError(f"{above!r}: more than {_MOST} files in one folder")
    for name in sorted(names):
        path = above + name
        if not name.isprintable():  # it would break the digest's lines
            raise ValueError(f"{path!r}: a file name with control characters, or not UTF-8")
        mode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            if name == BYTECODE:
                continue
            inner = os.open(
                name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor
            )
            try:
                yield path, None
                yield from _walk(inner, f"{path}/", depth - 1)
            finally:
                os.close(inner)
        elif not stat.S_ISREG(mode) or name.lower() == BYTECODE:
            raise ValueError(f"{path!r}: a symbolic link, a device or another special file")
        elif name.lower().endswith(_COMPILED):
            raise ValueError(f"{path!r}: compiled code, an archive or a .pth file; only sources are taken")
        else:
            yield path, _content(descriptor, name, path)


def _content(folder: int, name: str, path: str) -> bytes:
    """The bytes of one plain file; a pipe that took its place does not block."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError(f"{path!r}: a symbolic link") from None
        raise
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{path!r}: a device or another special file")
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise ValueError(f"{path!r}: more than {_LARGEST} bytes")
    return data
