"""Copies from an NVIDIA archive the files that an image gets, to a tar with their installed paths.

`cuda/tree.py` decides which files of the archive an image gets, and where they are installed.

The caller has compared the archive with the hash in the lock. Names and links are checked nevertheless: even
a wrong lock must not write files outside of the toolkit's folder.
"""

from __future__ import annotations

import lzma
import posixpath
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from torchkiln.cuda import tree as cuda_tree
from torchkiln.errors import BadArchive, printable
from torchkiln.model.lock import LockedArchive
from torchkiln.model.recipe import WHEEL_EPOCH
from torchkiln.oci import tar
from torchkiln.oci.tar_reader import TarEntry, TarReader, pieces_of

_MAX_ENTRIES = 100_000  # CCCL, the largest archive, has a few thousand
_MAX_CONTENT = 20 << 30  # bytes unpacked; cuBLAS, the largest, has three billion
# Raised when the file is not an xz file or tar, or is damaged.
_DAMAGED = (lzma.LZMAError, EOFError, ValueError)
_PIECE = 1 << 18
# Bytes; `xz -9` needs 65 MiB to decompress, but a file may need up to 4 GiB.
_MEMORY = 256 << 20


def keep(archive: LockedArchive, path: Path, out: BinaryIO) -> None:
    """Write a tar to *out*: the installed files of *archive*, whose file is *path*, and then the links.

    :raises BadArchive: it is damaged, or has a forbidden entry; the message names the entry.
    :raises OSError: reading or writing failed.
    """
    selection = _Selection(archive)
    try:
        with path.open("rb") as file:
            archived = TarReader(pieces_of(Unxz(file)))
            for entry in archived:
                for piece in selection.take(entry, archived):
                    out.write(piece)
    except _DAMAGED as error:
        raise BadArchive(archive.filename, f"cannot be read: {error}") from error
    for piece in selection.links():
        out.write(piece)
    out.write(tar.END)


class _Selection:
    """Selects the installed files of one archive."""

    def __init__(self, archive: LockedArchive) -> None:
        self._archive = archive
        self._top = archive.filename.removesuffix(".tar.xz")
        self._seen: dict[str, bool] = {}  # path → whether it is a folder; parents of entries are folders, too
        self._kept: dict[str, str] = {}  # path → installed path
        self._links: dict[str, tuple[str, str]] = {}  # path → installed path, target
        self._content = 0

    def take(self, entry: TarEntry, archived: TarReader) -> Iterator[bytes | memoryview]:
        """Check the next entry; if it is an installed file or hard link, yield it as pieces of a tar."""
        path = self._path(entry)
        if not path:  # the top folder
            return
        self._note(path, folder=entry.kind == "folder")
        if entry.kind == "folder":
            return
        installed = cuda_tree.place(self._archive.component, path)
        if entry.kind == "link":
            target = self._target(posixpath.join(posixpath.dirname(path), entry.target), entry)
            if installed:
                self._links[path] = (installed, target)
        elif entry.kind == "hard link":
            yield from self._hard_link(path, installed, entry)
        elif entry.kind != "file":
            raise self._refused(entry, "is not a file, directory or link")
        else:
            self._content += entry.size
            if self._content > _MAX_CONTENT:
                raise BadArchive(self._archive.filename, f"unpacks to more than {_MAX_CONTENT >> 30} GiB")
            if installed:
                self._kept[path] = installed
                mode = 0o755 if entry.mode & 0o100 else 0o644
                yield tar.header(installed, mode=mode, size=entry.size, mtime=WHEEL_EPOCH)
                yield from archived.content()
                yield tar.padding(entry.size)

    def links(self) -> Iterator[bytes]:
        """The symbolic links whose target is installed, as pieces of a tar."""
        paths = set(self._kept) | set(self._links)
        folders = {folder for path in paths for folder in tar.parents(path)}
        for installed, original in sorted(self._links.values()):
            if original in paths or original in folders:
                target = self._links[original][0] if original in self._links else self._kept.get(original)
                target = target or cuda_tree.folder_of(original)
                if target:
                    text = posixpath.relpath(target, posixpath.dirname(installed) or ".")
                    yield tar.link(installed, text, mtime=WHEEL_EPOCH)

    def _path(self, entry: TarEntry) -> str:
        """The path of *entry* below the top folder of the archive; empty for that folder."""
        parts = entry.path.split("/")
        if printable(entry.path) != entry.path:
            raise self._refused(entry, "has non-printable characters in its name")
        if any(part.startswith(".wh.") for part in parts):
            raise self._refused(entry, "is a whiteout: it would delete files in a layer")
        if parts[0] != self._top:
            raise self._refused(entry, f"is outside of {self._top}")
        return "/".join(parts[1:])

    def _note(self, path: str, *, folder: bool) -> None:
        if len(self._seen) > _MAX_ENTRIES:
            raise BadArchive(self._archive.filename, f"has more than {_MAX_ENTRIES} entries")
        for above in tar.parents(path):
            if not self._seen.setdefault(above, True):
                raise BadArchive(
                    self._archive.filename, f"{path!r} is below {above!r}, which is not a directory"
                )
        if path in self._seen and not (folder and self._seen[path]):
            raise BadArchive(self._archive.filename, f"{path!r} is a duplicate")
        self._seen[path] = folder

    def _target(self, raw: str, entry: TarEntry) -> str:
        """The target of a link, below the top folder."""
        target = posixpath.normpath(raw)
        if entry.target.startswith("/") or target.split("/")[0] == ".." or printable(raw) != raw:
            raise self._refused(entry, f"is a link to {entry.target!r}, outside of the archive")
        return target

    def _hard_link(self, path: str, installed: str | None, entry: TarEntry) -> Iterator[bytes]:
        top, _, target = entry.target.partition("/")
        if top != self._top or target not in self._seen or self._seen[target]:
            raise self._refused(entry, f"is a hard link to {entry.target!r}, which is not an earlier file")
        if installed is None:
            return
        if target not in self._kept:
            raise self._refused(entry, f"is a hard link to {target!r}, which is not installed")
        self._kept[path] = installed
        info = tarfile.TarInfo(installed)
        info.type, info.linkname, info.mtime = tarfile.LNKTYPE, self._kept[target], WHEEL_EPOCH
        yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")

    def _refused(self, entry: TarEntry, why: str) -> BadArchive:
        return BadArchive(self._archive.filename, f"{entry.path[:300]!r} {why}")


class Unxz:
    """Reads a file of one xz stream.

    :raises lzma.LZMAError: the file is not xz, is damaged, needs too much memory, or has trailing data.
    :raises EOFError: it is truncated.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY)

    def read(self, size: int) -> bytes:
        """*size* bytes, fewer only at the end."""
        parts: list[bytes] = []
        while size > 0 and not self._unpacker.eof:
            packed = self._file.read(_PIECE) if self._unpacker.needs_input else b""
            if self._unpacker.needs_input and not packed:
                raise EOFError("unexpected end of input")
            piece = self._unpacker.decompress(packed, max_length=size)
            size -= len(piece)
            parts.append(piece)
        if self._unpacker.eof and (self._unpacker.unused_data or self._file.read(1)):
            raise lzma.LZMAError("trailing data after the end of the xz stream")
        return b"".join(parts)
