"""Read the files of a folder into memory without following links, and write them as a read-only copy.

The digest and the copy that runs are made from the same bytes: changing a file in between has no effect.
Links and special files are errors.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from torchkiln.util.scratch import scratch

BYTECODE = "__pycache__"  # ignored
_MAX_DEPTH = 16  # nested folders
_MAX_ENTRIES = 5_000  # files and folders; torchkiln's suite has 70
_MAX_FILE = 8 << 20  # bytes; the largest file of torchkiln's suite has 9 kB
_MAX_TOTAL = 64 << 20  # bytes of all files
# Files other than *.py that Python imports or runs at startup. They cannot be reviewed as source.
_COMPILED = (".pyc", ".pyo", ".pyd", ".so", ".dll", ".dylib", ".pth", ".egg", ".zip", ".whl", ".egg-link")


def read_tree(folder: Path) -> dict[str, bytes]:
    """All files below *folder* by path, sorted by the parts of the path.

    :raises OSError: it cannot be read.
    :raises ValueError: it contains a link, a special file, compiled code or an archive, or is too large.
    """
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found: dict[str, bytes] = {}
        left = _MAX_TOTAL
        for count, (path, data) in enumerate(_walk(root, "", _MAX_DEPTH), start=1):
            left -= len(data or b"")
            if count > _MAX_ENTRIES or left < 0:
                raise ValueError(f"more than {_MAX_ENTRIES} files, or more than {_MAX_TOTAL} bytes")
            if data is not None:
                found[path] = data
    finally:
        os.close(root)
    return dict(sorted(found.items(), key=lambda item: PurePosixPath(item[0]).parts))


def write_tree(files: Mapping[str, bytes], folder: Path) -> None:
    """Write *files* (of `read_tree`) into a new *folder*, read-only."""
    folder.mkdir()
    folders = {folder}
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        folders.update(folder / parent for parent in PurePosixPath(name).parents)
        path.write_bytes(data)
        path.chmod(0o444)
    for created in folders:
        created.chmod(0o755)  # whatever the umask is: a container's user must read the files


@contextmanager
def copied(files: Mapping[str, bytes], name: str) -> Iterator[Path]:
    """A temporary folder *name* with *files*, inside a folder that other users cannot enter.

    :raises ConfigError: other users can write to the folder for temporary files.
    """
    with scratch(name) as private:
        write_tree(files, private / name)
        yield private / name


def _walk(descriptor: int, above: str, depth: int) -> Iterator[tuple[str, bytes | None]]:
    """(path, content) of each file and folder below an open folder; content is None for a folder."""
    if not depth:
        raise ValueError(f"{above!r}: folders are nested more than {_MAX_DEPTH} levels deep")
    with os.scandir(descriptor) as listed:
        names = []
        for entry in listed:
            names.append(entry.name)
            if len(names) > _MAX_ENTRIES:
                raise ValueError(f"{above!r}: more than {_MAX_ENTRIES} files in one folder")
    for name in sorted(names):
        path = above + name
        if not name.isprintable():  # the digest is that of a text with one line per file
            raise ValueError(f"{path!r}: the file name contains control characters, or is not UTF-8")
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
            raise ValueError(f"{path!r}: compiled code, archives and .pth files are not allowed")
        else:
            yield path, _content(descriptor, name, path)


def _content(folder: int, name: str, path: str) -> bytes:
    """The bytes of a regular file; does not block if it is replaced by a pipe."""
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
        data = file.read(_MAX_FILE + 1)
    if len(data) > _MAX_FILE:
        raise ValueError(f"{path!r}: more than {_MAX_FILE} bytes")
    return data
