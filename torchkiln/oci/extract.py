"""Entries of layers → files below one folder, which no link, name or order of theirs leads out of.

Each path is walked from an open descriptor of that folder, one part at a time, and never through a link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from torchkiln.oci.tar_reader import Entry

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(ValueError):
    """An entry that would delete, lead out of the root, or be no file; the text is a sentence."""


class Extractor:
    """Writes into the empty folder *root*, which nobody else writes into. Close it in the end.

    As root, files get the image's owners; else they are the caller's.
    """

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, _FOLDER)
        self._owners = os.geteuid() == 0
        self._folders: dict[str, Entry] = {}  # get their modes and times last: until then we write into them
        self._parent = ("", self._root)  # the folder that was used last; mostly it is the next one too

    def add(self, entry: Entry, content: Iterable[memoryview]) -> None:
        """Create what *entry* says, in the place of what another layer had there.

        :raises Refused: it may not be.
        :raises OSError: the disk is full or not writable.
        """
        if entry.kind in ("char", "block", "pipe"):
            raise Refused("is a device or a pipe")
        folder, _, name = entry.path.rpartition("/")
        if name.startswith(".wh."):
            raise Refused("is a whiteout, which this tool neither makes nor reads")
        if not name:
            self._folders[""] = entry
            return
        parent = self._opened(folder)
        if entry.kind == "folder":
            self._make_folder(entry.path, name, parent)
            self._folders[entry.path] = entry
        else:
            _remove(name, parent)
            if entry.kind == "file":
                self._write(entry, name, parent, content)
            elif entry.kind == "link":
                os.symlink(entry.target, name, dir_fd=parent)
                self._own(entry, name, parent)
            else:
                self._link(entry, name, parent)

    def finish(self) -> None:
        """Give the folders what they are to have; nothing can be added after it."""
        for path in sorted(self._folders, reverse=True):  # what is inside a folder comes before it
            entry = self._folders[path]
            descriptor = os.dup(self._root) if not path else self._walk(path)
            try:
                if self._owners:
                    os.fchown(descriptor, entry.uid, entry.gid)
                os.fchmod(descriptor, stat.S_IMODE(entry.mode))
                os.utime(descriptor, (entry.mtime, entry.mtime))
            finally:
                os.close(descriptor)

    def close(self) -> None:
        """Let go of the folder."""
        self._let_go()
        os.close(self._root)

    def _opened(self, folder: str) -> int:
        """A descriptor of *folder*, made if it is not there, as engines make it. Not to be closed."""
        if folder != self._parent[0]:
            self._let_go()
            self._parent = (folder, self._walk(folder, make=True))
        return self._parent[1]

    def _let_go(self) -> None:
        if self._parent[1] != self._root:
            os.close(self._parent[1])
        self._parent = ("", self._root)

    def _walk(self, folder: str, *, make: bool = False) -> int:
        """:raises Refused: a part of it is a link or a file."""
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
                raise Refused("would be written through a symbolic link or a file") from None
            finally:
                os.close(descriptor)
            descriptor = below
        return descriptor

    def _make_folder(self, path: str, name: str, parent: int) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            found = os.lstat(name, dir_fd=parent).st_mode
            if not stat.S_ISDIR(found):
                what = "a symbolic link" if stat.S_ISLNK(found) else "a file"
                raise Refused(f"would make a folder of {what}") from None

    def _write(self, entry: Entry, name: str, parent: int, content: Iterable[memoryview]) -> None:
        descriptor = os.open(name, _FILE, 0o600, dir_fd=parent)
        try:
            for piece in content:
                while piece:
                    piece = piece[os.write(descriptor, piece) :]
            if self._owners:  # first: it takes set-user-id bits away
                os.fchown(descriptor, entry.uid, entry.gid)
            os.fchmod(descriptor, stat.S_IMODE(entry.mode))
            os.utime(descriptor, (entry.mtime, entry.mtime))
        finally:
            os.close(descriptor)

    def _link(self, entry: Entry, name: str, parent: int) -> None:
        folder, _, target = entry.target.rpartition("/")
        source = self._walk(folder) if folder else os.dup(self._root)
        try:
            if not stat.S_ISREG(os.lstat(target, dir_fd=source).st_mode):
                raise Refused(f"is a hard link to {entry.target}, which is not a file")
            os.link(target, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(source)

    def _own(self, entry: Entry, name: str, parent: int) -> None:
        if self._owners:
            os.chown(name, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
        os.utime(name, (entry.mtime, entry.mtime), dir_fd=parent, follow_symlinks=False)


def _remove(name: str, parent: int) -> None:
    """Take away the file or link that a lower layer has there.

    :raises Refused: it is a folder, with which all below it would go.
    """
    try:
        found = os.lstat(name, dir_fd=parent).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(found):
        raise Refused("would replace a folder")
    os.unlink(name, dir_fd=parent)
