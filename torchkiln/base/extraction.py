"""The tar of a base → some of its files in a folder, whatever the tar says of links.

Each folder is opened below its parent, by a descriptor, and no link is followed. Links are made last: those
that lead to something that was extracted, each straight to it. Others are left out, so that no link in the
folder leads elsewhere, in whatever root it is read.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from torchkiln.model.digest import Digest
from torchkiln.oci.opening import bounded
from torchkiln.oci.tar_reader import Entry, TarReader, pieces_of

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

_MOST_FILES = 20_000  # that are extracted; a Python has two thousand
_MOST_ONE = 64 << 20  # bytes of a file
_MOST_ALL = 512 << 20
_MOST_READ = 8 << 30  # bytes of the tar, most of which is passed over
_MOST_NAME = 4096
_MOST_STEPS = 40  # links on the way to something, as the kernel counts them


class Refused(ValueError):
    """The tar holds what no base has."""


def extract(stream: BinaryIO, into: Path, wanted: Callable[[str], bool]) -> Digest:
    """Take the files of *stream*, a tar, whose paths are *wanted* to *into*, an empty folder.

    :returns: the digest of the whole tar: of the bytes that were used, not of another read.

    :raises Refused: a name, a link or a size is not what a base has; names it.
    :raises OSError: it cannot be written; `read_tar.DAMAGED`: it is damaged.
    """
    total = hashlib.sha256()
    into.mkdir(parents=True, exist_ok=True)
    into.chmod(0o755)  # whatever the umask: another user reads it
    top = os.open(into, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = _Extraction(top=top)
        tar = TarReader(_hashed(bounded(stream, _MOST_READ, _too_much), total))
        for entry in tar:
            if wanted(entry.path):
                found.take(entry, tar)
        found.make_links()
    finally:
        os.close(top)
    return Digest(f"sha256:{total.hexdigest()}")


def _too_much() -> Refused:
    return Refused(f"it unpacks to more than {_MOST_READ >> 30} GiB")


def _hashed(stream: BinaryIO, total: Hash) -> Iterator[bytes]:
    for piece in pieces_of(stream):
        total.update(piece)
        yield piece


@dataclass(kw_only=True, slots=True)
class _Extraction:
    """What was taken so far, by its path."""

    top: int  # descriptor of the folder
    files: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    links: dict[str, str] = field(default_factory=dict)
    size: int = 0

    def take(self, entry: Entry, tar: TarReader) -> None:
        """One entry; a folder is made with its first file."""
        path = entry.path
        if entry.kind == "folder":
            if path in self.files or path in self.links:
                raise Refused(f"{path} is there twice")
            return
        if path in self.files or path in self.links or path in self.folders:
            raise Refused(f"{path} is there twice")
        if len(self.files) + len(self.links) >= _MOST_FILES:
            raise Refused(f"its Python has more than {_MOST_FILES} files")
        folder = self._folder(path)
        try:
            if entry.kind == "link":
                self.links[path] = entry.target
            elif entry.kind == "hard link":
                self._hard_link(path, entry.target, folder)
            elif entry.kind == "file":
                self._write(entry, tar, folder)
            else:
                raise Refused(f"{path} is neither a file nor a link")
        finally:
            os.close(folder)

    def _folder(self, path: str) -> int:
        """The folder of *path*, opened; it and those above it are made."""
        found, at = os.dup(self.top), ""
        for part in path.split("/")[:-1]:
            at = f"{at}/{part}" if at else part
            if at in self.files or at in self.links:
                os.close(found)
                raise Refused(f"{path} lies below {at}, which is no folder")
            try:
                if at not in self.folders:
                    os.mkdir(part, 0o755, dir_fd=found)
                below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=found)
            finally:
                os.close(found)
            if at not in self.folders:
                self.folders.add(at)
                os.fchmod(below, 0o755)
            found = below
        return found

    def _write(self, entry: Entry, tar: TarReader, folder: int) -> None:
        path = entry.path
        self.size += entry.size
        if entry.size > _MOST_ONE or self.size > _MOST_ALL:
            raise Refused(f"{path} is {entry.size} bytes; its Python is too large")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(path.rpartition("/")[2], flags, 0o600, dir_fd=folder), "wb") as file:
            for piece in tar.content():
                file.write(piece)
            os.fchmod(file.fileno(), 0o755 if entry.mode & 0o111 else 0o644)
        self.files.add(path)

    def _hard_link(self, path: str, target: str, folder: int) -> None:
        if target not in self.files:
            raise Refused(f"{path} is a hard link to {target}, which was not extracted")
        source = self._folder(target)
        try:
            name = target.rpartition("/")[2], path.rpartition("/")[2]
            os.link(*name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(source)
        self.files.add(path)

    def make_links(self) -> None:
        """Those that lead to something that is here."""
        for path in self.links:
            target = self._led(path)
            if target is not None:
                place, _, name = path.rpartition("/")
                folder = self._folder(path)
                try:
                    os.symlink(posixpath.relpath(f"/{target}", f"/{place}"), name, dir_fd=folder)
                finally:
                    os.close(folder)

    def _led(self, path: str) -> str | None:
        """The file or folder to which *path* leads in the end, as a root's own resolver would find it."""
        left, at, steps = path.split("/"), "", 0
        while left:
            part = left.pop(0)
            if part in ("", "."):
                continue
            if part == "..":
                at = at.rpartition("/")[0]
                continue
            there = f"{at}/{part}" if at else part
            if there in self.links:
                steps += 1
                target = self.links[there]
                if steps > _MOST_STEPS or len(target) > _MOST_NAME:
                    return None
                left = [*target.split("/"), *left]
                at = "" if target.startswith("/") else at
            elif there in self.folders or (there in self.files and not left):
                at = there
            else:
                return None
        return at or None
