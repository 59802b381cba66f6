"""Writes the entries of layers below one folder; no link, name or order of entries can lead out of it.

Each path is opened from a descriptor of that folder, one component at a time, never through a link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from torchkiln.oci.tar_names import removed_by
from torchkiln.oci.tar_reader import TarEntry

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 16 << 10  # bytes of the smallest hole; a multiple of what file systems allocate
_ZEROS = bytes(_BLOCK)
_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NOTHING = "is a whiteout of a path that no layer below contains"


class EntryRefused(ValueError):
    """An entry would delete files, leads out of the root, or is a device or a pipe.

    The text is a predicate: "is a device or a pipe".
    """


class Extractor:
    """Writes into the folder *root*, to which no other process writes. Call `close` at the end.

    If the caller is root, files get the owners of the image; otherwise the caller owns them.

    :param folders: those that *root* already has; otherwise it must be empty.
    """

    def __init__(self, root: Path, folders: Iterable[TarEntry] = ()) -> None:
        self._root = os.open(root, _FOLDER)
        self._owners = os.geteuid() == 0
        # Folders get their modes and times at the end: until then they must be writable.
        self._folders = {entry.path: entry for entry in folders}
        self._parent = ("", self._root)  # the last one used: the next entry usually has the same parent

    def add(self, entry: TarEntry, content: Iterable[memoryview]) -> None:
        """Create *entry*, replacing a file or link of another layer.

        :raises EntryRefused: layers must not have such an entry.
        :raises OSError: the disk is full or not writable.
        """
        if entry.kind in ("char", "block", "pipe"):
            raise EntryRefused("is a device or a pipe")
        folder, _, name = entry.path.rpartition("/")
        if name.startswith(".wh."):
            self._whiteout(entry)
            return
        if not name:
            self._folders[""] = entry
            return
        parent = self._opened(folder)
        if entry.kind == "folder":
            self._make_folder(name, parent)
            self._folders[entry.path] = entry
        else:
            _remove(name, parent)
            if entry.kind == "file":
                self._write(entry, name, parent, content)
            elif entry.kind == "link":
                os.symlink(entry.target, name, dir_fd=parent)
                if self._owners:
                    os.chown(name, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
                os.utime(name, (entry.mtime, entry.mtime), dir_fd=parent, follow_symlinks=False)
            else:
                self._link(entry, name, parent)

    def _whiteout(self, entry: TarEntry) -> None:
        """Remove a path of lower layers; `LayerPaths` refuses a layer that also contains it."""
        removed = removed_by(entry.path)
        if not removed or entry.kind != "file" or entry.size:
            raise EntryRefused("is a whiteout that is not supported: it is opaque, or not an empty file")
        folder, _, name = removed.rpartition("/")
        try:
            parent = self._walk(folder)
        except FileNotFoundError:
            raise EntryRefused(_NOTHING) from None
        try:
            _remove_all(name, parent)
        except FileNotFoundError:
            raise EntryRefused(_NOTHING) from None
        finally:
            os.close(parent)
        self._close_parent()  # it may have been removed
        inside = f"{removed}/"
        for path in [path for path in self._folders if path == removed or path.startswith(inside)]:
            del self._folders[path]

    def finish(self) -> None:
        """Set owners, modes and times of the folders; nothing can be added afterwards."""
        for path in sorted(self._folders, reverse=True):  # subfolders before their parents
            entry = self._folders[path]
            descriptor = os.dup(self._root) if not path else self._walk(path)
            try:
                self._set_rights(entry, descriptor)
            finally:
                os.close(descriptor)

    def _set_rights(self, entry: TarEntry, descriptor: int) -> None:
        """Set owner, mode and time of an open file or folder."""
        if self._owners:  # before fchmod: chown clears set-user-ID bits
            os.fchown(descriptor, entry.uid, entry.gid)
        os.fchmod(descriptor, stat.S_IMODE(entry.mode))
        os.utime(descriptor, (entry.mtime, entry.mtime))

    def close(self) -> None:
        self._close_parent()
        os.close(self._root)

    def _opened(self, folder: str) -> int:
        """A descriptor of *folder*, created if missing, as engines do. The caller must not close it."""
        if folder != self._parent[0]:
            self._close_parent()
            self._parent = (folder, self._walk(folder, make=True))
        return self._parent[1]

    def _close_parent(self) -> None:
        if self._parent[1] != self._root:
            os.close(self._parent[1])
        self._parent = ("", self._root)

    def _walk(self, folder: str, *, make: bool = False) -> int:
        """A new descriptor of *folder*.

        :raises EntryRefused: a component of *folder* is a link or a file.
        """
        descriptor = os.dup(self._root)
        for part in filter(None, folder.split("/")):
            try:
                try:
                    below = os.open(part, _FOLDER, dir_fd=descriptor)
                except FileNotFoundError:
                    if not make:
                        raise
                    os.mkdir(part, 0o755, dir_fd=descriptor)
                    below = os.open(part, _FOLDER, dir_fd=descriptor)
            except NotADirectoryError:
                raise EntryRefused("would be written through a symbolic link or a file") from None
            finally:
                os.close(descriptor)
            descriptor = below
        return descriptor

    def _make_folder(self, name: str, parent: int) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            found = os.lstat(name, dir_fd=parent).st_mode
            if not stat.S_ISDIR(found):
                what = "symbolic link" if stat.S_ISLNK(found) else "file"
                raise EntryRefused(f"would replace a {what} by a directory") from None

    def _write(self, entry: TarEntry, name: str, parent: int, content: Iterable[memoryview]) -> None:
        descriptor = os.open(name, _FILE, 0o600, dir_fd=parent)
        try:
            for piece in content:
                _write_sparsely(descriptor, piece)
            os.ftruncate(descriptor, entry.size)  # it may end with a hole
            self._set_rights(entry, descriptor)
        finally:
            os.close(descriptor)

    def _link(self, entry: TarEntry, name: str, parent: int) -> None:
        folder, _, target = entry.target.rpartition("/")
        source = self._walk(folder) if folder else os.dup(self._root)
        try:
            if not stat.S_ISREG(os.lstat(target, dir_fd=source).st_mode):
                raise EntryRefused(f"is a hard link to {entry.target}, which is not a regular file")
            os.link(target, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(source)


def _write_sparsely(descriptor: int, piece: memoryview) -> None:
    """Write *piece*, with a hole for each block of zeros: cut libraries have many."""
    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    written = 0
    for start in range(-position % _BLOCK, len(piece) - _BLOCK + 1, _BLOCK):
        if not piece[start] and bytes(piece[start : start + _BLOCK]) == _ZEROS:
            _write_fully(descriptor, piece[written:start])
            written = start + _BLOCK
            os.lseek(descriptor, position + written, os.SEEK_SET)
    _write_fully(descriptor, piece[written:])


def _write_fully(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _remove(name: str, parent: int) -> None:
    """Remove the file or link of a lower layer.

    :raises EntryRefused: it is a directory; everything below it would be removed.
    """
    try:
        found = os.lstat(name, dir_fd=parent).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(found):
        raise EntryRefused("would replace a directory")
    os.unlink(name, dir_fd=parent)


def _remove_all(name: str, parent: int) -> None:
    """Remove the file, link or folder; no link is followed."""
    if not stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
        os.unlink(name, dir_fd=parent)
        return
    folder = os.open(name, _FOLDER, dir_fd=parent)
    try:
        for below in os.listdir(folder):
            _remove_all(below, folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=parent)
