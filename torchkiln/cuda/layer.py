"""Makes one layer from NVIDIA archives, below /usr/local/cuda-12.1, with the pinned encoder.

First the files that an image gets are copied from each archive to a tar with their installed paths;
`cuda/tree.py` decides which these are. The caller has compared the archive with the hash in the lock. Names
and links are checked nevertheless: even a wrong lock must not write files outside of the toolkit's folder.

The layer does not depend on a cell's Python or wheels, so all cells of a CUDA version share it.
"""

from __future__ import annotations

import hashlib
import lzma
import posixpath
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from torchkiln.cuda import tree as cuda_tree
from torchkiln.errors import BadArchive
from torchkiln.model.layer import Blob
from torchkiln.model.lock import LockedArchive
from torchkiln.model.recipe import WHEEL_EPOCH
from torchkiln.oci import tar
from torchkiln.oci.encode import encode
from torchkiln.oci.tar_reader import IteratorFile, TarEntry, TarReader, pieces_of
from torchkiln.oci.vendor_archive import VendorArchive


@dataclass(frozen=True, kw_only=True, slots=True)
class _Member:
    """A file or link and its archive."""

    path: str
    archive: LockedArchive
    member: tarfile.TarInfo
    opened: tarfile.TarFile


def write_layer(kept: Sequence[tuple[LockedArchive, Path]], home: str, out: Path) -> Blob:
    """Write the content of the tars in *kept* as one layer, below *home*, "usr/local/cuda-12.1".

    :param kept: each archive, and the tar that `keep` made of it.
    :raises BadArchive: two of them have different files at one path.
    :raises OSError: reading or writing failed; *out* is incomplete.
    """
    with ExitStack() as stack:
        found: dict[str, _Member] = {}
        for archive, path in kept:
            opened = stack.enter_context(tarfile.open(path, "r:"))
            for member in opened:
                entry = _Member(path=f"{home}/{member.name}", archive=archive, member=member, opened=opened)
                if (other := found.setdefault(entry.path, entry)) is not entry and _identity(
                    entry
                ) != _identity(other):
                    raise BadArchive(
                        archive.filename, f"{member.name!r} differs from the file in {other.archive.filename}"
                    )
        # Hard links last: their targets must precede them.
        entries = sorted(found.values(), key=lambda entry: (entry.member.islnk(), entry.path))
        _check_folders(entries)
        return encode(IteratorFile(_pieces(entries, home)), out)


def _pieces(entries: Sequence[_Member], home: str) -> Iterator[bytes]:
    folders: set[str] = set()
    for entry in entries:
        for folder in tar.parents(entry.path):
            if folder not in folders:
                folders.add(folder)
                yield tar.header(folder, mode=0o755, mtime=WHEEL_EPOCH, directory=True)
        if entry.member.issym():
            yield tar.link(entry.path, entry.member.linkname, mtime=WHEEL_EPOCH)
        elif entry.member.islnk():
            info = tarfile.TarInfo(entry.path)
            info.type, info.mode, info.mtime = tarfile.LNKTYPE, entry.member.mode, WHEEL_EPOCH
            info.linkname = f"{home}/{entry.member.linkname}"
            yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
        else:
            yield tar.header(entry.path, mode=entry.member.mode, size=entry.member.size, mtime=WHEEL_EPOCH)
            yield from _content(entry)
            yield tar.padding(entry.member.size)
    yield tar.END


def _content(entry: _Member) -> Iterator[bytes]:
    content = entry.opened.extractfile(entry.member)
    assert content is not None
    yield from pieces_of(content)


def _identity(entry: _Member) -> tuple[bytes, str, int, bytes]:
    """Type, target, mode and digest, which must be equal if two archives have the path."""
    digest = hashlib.sha256()
    if entry.member.isreg():
        for piece in _content(entry):
            digest.update(piece)
    return entry.member.type, entry.member.linkname, entry.member.mode, digest.digest()


def _check_folders(entries: Sequence[_Member]) -> None:
    """Refuse a file of one archive if another archive has a directory at its path."""
    paths = {entry.path for entry in entries}
    for entry in entries:
        if above := next((folder for folder in tar.parents(entry.path) if folder in paths), None):
            raise BadArchive(
                entry.archive.filename,
                f"{entry.path!r} is below {above!r}, which is a file of another archive",
            )


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
            archived = TarReader(pieces_of(Unxz(file)), most=_MAX_ENTRIES)
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
        self._component = archive.component
        self._checked = VendorArchive(archive.filename, archive.filename.removesuffix(".tar.xz"), BadArchive)
        self._kept: dict[str, str] = {}  # path → installed path
        self._links: dict[str, tuple[str, str]] = {}  # path → installed path, target
        self._content = 0

    def take(self, entry: TarEntry, archived: TarReader) -> Iterator[bytes | memoryview]:
        """Check the next entry; if it is an installed file or hard link, yield it as pieces of a tar."""
        path = self._checked.path(entry)
        if entry.kind == "folder":
            return
        installed = cuda_tree.place(self._component, path)
        if entry.kind == "link":
            target = self._checked.link_target(entry)
            if installed:
                self._links[path] = (installed, target)
        elif entry.kind == "hard link":
            target = self._checked.hard_link_target(entry)
            if installed and target not in self._kept:
                raise self._checked.refused(entry, f"is a hard link to {target!r}, which is not installed")
            if installed:
                self._kept[path] = installed
                info = tarfile.TarInfo(installed)
                info.type, info.linkname, info.mtime = tarfile.LNKTYPE, self._kept[target], WHEEL_EPOCH
                yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
        elif entry.kind != "file":
            raise self._checked.refused(entry, "is not a file, directory or link")
        else:
            self._content += entry.size
            if self._content > _MAX_CONTENT:
                raise self._checked.bad(f"unpacks to more than {_MAX_CONTENT >> 30} GiB")
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
