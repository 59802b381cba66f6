"""An archive of NVIDIA's -> the part of it that an installation takes, as a plain tar of files and links.

The file's hash was checked before. Still nothing is taken at its word: who trusts a wrong lock must not get
files elsewhere than in the toolkit's folder. `cuda_tree` says what goes where; the rest is passed over.
"""

from __future__ import annotations

import lzma
import posixpath
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from torchkiln.cuda import tree as cuda_tree
from torchkiln.cuda.xz import Unxz
from torchkiln.errors import BadArchive, printable
from torchkiln.model.lock import LockedArchive
from torchkiln.model.recipe import WHEEL_EPOCH
from torchkiln.oci import tar
from torchkiln.oci.tar_reader import Entry, TarReader, pieces_of

_MOST_ENTRIES = 100_000  # CCCL, which has most, has some thousands
_MOST_CONTENT = 20 << 30  # bytes unpacked; cuBLAS, the largest, has some three thousand million
# What reading raises where the file is no xz, no tar, or a damaged one.
_DAMAGED = (lzma.LZMAError, EOFError, ValueError)


def keep(archive: LockedArchive, path: Path, out: BinaryIO) -> None:
    """Write to *out* what an installation takes of *archive*, which lies at *path*: files, then links.

    :raises BadArchive: it is no such archive, or holds what none may hold; names that.
    :raises OSError: reading or writing failed.
    """
    taking = _Taking(archive)
    try:
        with path.open("rb") as file:
            archived = TarReader(pieces_of(Unxz(file)))
            for entry in archived:
                for piece in taking.take(entry, archived):
                    out.write(piece)
    except _DAMAGED as error:
        raise BadArchive(archive.filename, f"cannot be read: {error}") from error
    for piece in taking.links():
        out.write(piece)
    out.write(tar.END)


class _Taking:
    """What has been seen of one archive."""

    def __init__(self, archive: LockedArchive) -> None:
        self._archive = archive
        self._top = archive.filename.removesuffix(".tar.xz")
        self._seen: dict[str, bool] = {}  # path → whether it is a folder, said or by what lies in it
        self._kept: dict[str, str] = {}  # path → where it goes
        self._links: dict[str, tuple[str, str]] = {}  # path → where it goes, where it leads
        self._content = 0

    def take(self, entry: Entry, archived: TarReader) -> Iterator[bytes | memoryview]:
        """The next entry; what is kept of it as a piece of tar."""
        path = self._path(entry)
        if not path:  # the archive's one folder
            return
        self._note(path, folder=entry.kind == "folder")
        if entry.kind == "folder":
            return
        placed = cuda_tree.place(self._archive.component, path)
        if entry.kind == "link":
            leads = self._target(posixpath.join(posixpath.dirname(path), entry.target), entry)
            if placed:
                self._links[path] = (placed, leads)
        elif entry.kind == "hard link":
            yield from self._hard(path, placed, entry)
        elif entry.kind != "file":
            raise self._refused(entry, "is neither a file, a folder nor a link")
        else:
            self._content += entry.size
            if self._content > _MOST_CONTENT:
                raise BadArchive(self._archive.filename, f"unpacks to more than {_MOST_CONTENT >> 30} GiB")
            if placed:
                self._kept[path] = placed
                mode = 0o755 if entry.mode & 0o100 else 0o644
                yield tar.header(placed, mode=mode, size=entry.size, mtime=WHEEL_EPOCH)
                yield from archived.content()
                yield tar.padding(entry.size)

    def links(self) -> Iterator[bytes]:
        """Those whose target is kept, and has one place."""
        there = set(self._kept) | set(self._links)
        folders = {folder for path in there for folder in tar.parents(path)}
        for placed, leads in sorted(self._links.values()):
            if leads in there or leads in folders:
                target = self._links[leads][0] if leads in self._links else self._kept.get(leads)
                target = target or cuda_tree.moved(leads)
                if target:
                    text = posixpath.relpath(target, posixpath.dirname(placed) or ".")
                    yield tar.link(placed, text, mtime=WHEEL_EPOCH)

    def _path(self, entry: Entry) -> str:
        """Its path below the archive's one folder; empty: that folder."""
        parts = entry.path.split("/")
        if printable(entry.path) != entry.path:
            raise self._refused(entry, "has no plain name")
        if any(part.startswith(".wh.") for part in parts):
            raise self._refused(entry, "would delete in a layer")
        if parts[0] != self._top:
            raise self._refused(entry, f"lies outside {self._top}")
        return "/".join(parts[1:])

    def _note(self, path: str, *, folder: bool) -> None:
        if len(self._seen) > _MOST_ENTRIES:
            raise BadArchive(self._archive.filename, f"has more than {_MOST_ENTRIES} entries")
        for above in tar.parents(path):
            if not self._seen.setdefault(above, True):
                raise BadArchive(self._archive.filename, f"{path!r} lies in {above!r}, which is no folder")
        if path in self._seen and not (folder and self._seen[path]):
            raise BadArchive(self._archive.filename, f"{path!r} stands twice")
        self._seen[path] = folder

    def _target(self, told: str, entry: Entry) -> str:
        """Where a link leads, below the archive's one folder."""
        found = posixpath.normpath(told)
        if entry.target.startswith("/") or found.split("/")[0] == ".." or printable(told) != told:
            raise self._refused(entry, f"is a link to {entry.target!r}, out of the archive")
        return found

    def _hard(self, path: str, placed: str | None, entry: Entry) -> Iterator[bytes]:
        top, _, target = entry.target.partition("/")
        if top != self._top or target not in self._seen or self._seen[target]:
            raise self._refused(entry, f"is a hard link to {entry.target!r}, no file before it")
        if placed is None:
            return
        if target not in self._kept:
            raise self._refused(entry, f"is a hard link to {target!r}, which is left out")
        self._kept[path] = placed
        info = tarfile.TarInfo(placed)
        info.type, info.linkname, info.mtime = tarfile.LNKTYPE, self._kept[target], WHEEL_EPOCH
        yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")

    def _refused(self, entry: Entry, why: str) -> BadArchive:
        return BadArchive(self._archive.filename, f"{entry.path[:300]!r} {why}")
