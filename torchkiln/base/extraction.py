"""Extracts selected files of a base's tar to a folder, and lets no link in the tar lead out of the folder.

Each folder is opened relative to the descriptor of its parent, and no link is followed. Links are created
last, each as a relative path to its extracted target. Links to other targets are left out. So no link leads
out of the folder, with or without a chroot.
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
from torchkiln.oci.tar_reader import TarEntry, TarReader, pieces_of

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

_MAX_FILES = 20_000  # extracted; a Python has two thousand
_MAX_FILE = 256 << 20  # bytes of a file; a standalone Python with its symbols has 100 million
_MAX_TOTAL = 512 << 20  # bytes of all extracted files
_MAX_READ = 8 << 30  # bytes of the tar, most of which is skipped
_MAX_TARGET = 4096  # characters of a link target
_MAX_LINKS = 40  # links followed in a path, the limit of the kernel


class ExtractionRefused(ValueError):
    """The tar has an entry that is not allowed."""


def extract(stream: BinaryIO, into: Path, wanted: Callable[[str], bool]) -> Digest:
    """Extract the files of the tar *stream* whose paths are *wanted* to the empty folder *into*.

    :returns: the digest of the whole tar, from the same read.
    :raises ExtractionRefused: a name, link or size is not allowed; the message names it.
    :raises OSError: a file cannot be written; `read_tar.DAMAGED`: the tar is damaged.
    """
    total = hashlib.sha256()
    into.mkdir(parents=True, exist_ok=True)
    into.chmod(0o755)  # regardless of the umask: another user reads it
    top = os.open(into, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        extraction = _Extraction(top=top)
        tar = TarReader(_hashed(bounded(stream, _MAX_READ, _too_large), total))
        for entry in tar:
            if wanted(entry.path):
                extraction.add(entry, tar)
        extraction.make_links()
    finally:
        os.close(top)
    return Digest(f"sha256:{total.hexdigest()}")


def _too_large() -> ExtractionRefused:
    return ExtractionRefused(f"it unpacks to more than {_MAX_READ >> 30} GiB")


def _hashed(stream: BinaryIO, total: Hash) -> Iterator[bytes]:
    for piece in pieces_of(stream):
        total.update(piece)
        yield piece


@dataclass(kw_only=True, slots=True)
class _Extraction:
    """The extracted entries, by path."""

    top: int  # descriptor of the folder
    files: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    links: dict[str, str] = field(default_factory=dict)
    size: int = 0

    def add(self, entry: TarEntry, tar: TarReader) -> None:
        """Extract an entry; folders are created with their first file."""
        path = entry.path
        if entry.kind == "folder":
            if path in self.files or path in self.links:
                raise ExtractionRefused(f"{path} is a duplicate")
            return
        if path in self.files or path in self.links or path in self.folders:
            raise ExtractionRefused(f"{path} is a duplicate")
        if len(self.files) + len(self.links) >= _MAX_FILES:
            raise ExtractionRefused(f"its Python has more than {_MAX_FILES} files")
        folder = self._folder(path)
        try:
            if entry.kind == "link":
                self.links[path] = entry.target
            elif entry.kind == "hard link":
                self._hard_link(path, entry.target, folder)
            elif entry.kind == "file":
                self._write(entry, tar, folder)
            else:
                raise ExtractionRefused(f"{path} is not a file or link")
        finally:
            os.close(folder)

    def _folder(self, path: str) -> int:
        """A descriptor of the folder of *path*, created if missing."""
        found, at = os.dup(self.top), ""
        for part in path.split("/")[:-1]:
            at = f"{at}/{part}" if at else part
            if at in self.files or at in self.links:
                os.close(found)
                raise ExtractionRefused(f"{path} is below {at}, which is not a directory")
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

    def _write(self, entry: TarEntry, tar: TarReader, folder: int) -> None:
        path = entry.path
        self.size += entry.size
        if entry.size > _MAX_FILE or self.size > _MAX_TOTAL:
            raise ExtractionRefused(f"{path}: its Python is too large ({entry.size} bytes)")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(path.rpartition("/")[2], flags, 0o600, dir_fd=folder), "wb") as file:
            for piece in tar.content():
                file.write(piece)
            os.fchmod(file.fileno(), 0o755 if entry.mode & 0o111 else 0o644)
        self.files.add(path)

    def _hard_link(self, path: str, target: str, folder: int) -> None:
        if target not in self.files:
            raise ExtractionRefused(f"{path} is a hard link to {target}, which was not extracted")
        source = self._folder(target)
        try:
            name = target.rpartition("/")[2], path.rpartition("/")[2]
            os.link(*name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(source)
        self.files.add(path)

    def make_links(self) -> None:
        """Create the links whose target was extracted."""
        for path in self.links:
            target = self._resolve(path)
            if target is not None:
                place, _, name = path.rpartition("/")
                folder = self._folder(path)
                try:
                    os.symlink(posixpath.relpath(f"/{target}", f"/{place}"), name, dir_fd=folder)
                finally:
                    os.close(folder)

    def _resolve(self, path: str) -> str | None:
        """The extracted file or folder to which *path* resolves in this root; None if it does not exist."""
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
                if steps > _MAX_LINKS or len(target) > _MAX_TARGET:
                    return None
                left = [*target.split("/"), *left]
                at = "" if target.startswith("/") else at
            elif there in self.folders or (there in self.files and not left):
                at = there
            else:
                return None
        return at or None
