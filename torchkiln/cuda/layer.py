"""Makes one layer of the extracted archives, below /usr/local/cuda-12.1, with the pinned encoder.

It contains nothing of the cell, its Python or its wheels, so all cells of a CUDA version share it.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from torchkiln.errors import BadArchive
from torchkiln.model.layer import Blob
from torchkiln.model.lock import LockedArchive
from torchkiln.model.recipe import WHEEL_EPOCH
from torchkiln.oci import tar
from torchkiln.oci.encode import encode

_PIECE = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class _Member:
    """A file or link and its archive."""

    path: str
    archive: LockedArchive
    member: tarfile.TarInfo
    opened: tarfile.TarFile


def write_layer(kept: Sequence[tuple[LockedArchive, Path]], home: str, out: Path) -> Blob:
    """Write the layer of *kept*, archives and the tars of `keep`, below *home*, "usr/local/cuda-12.1".

    :raises BadArchive: two of them have different files at one path.
    :raises OSError: reading or writing failed; *out* is incomplete.
    """
    with ExitStack() as stack:
        found: dict[str, _Member] = {}
        for archive, path in kept:
            opened = stack.enter_context(tarfile.open(path, "r:"))
            for member in opened:
                one = _Member(path=f"{home}/{member.name}", archive=archive, member=member, opened=opened)
                if (other := found.setdefault(one.path, one)) is not one and _identity(one) != _identity(
                    other
                ):
                    raise BadArchive(
                        archive.filename, f"{member.name!r} differs from the file in {other.archive.filename}"
                    )
        # Hard links last: their targets must precede them.
        entries = sorted(found.values(), key=lambda one: (one.member.islnk(), one.path))
        _check_folders(entries)
        return encode(cast(BinaryIO, _IteratorFile(_pieces(entries, home))), out)


def _pieces(entries: Sequence[_Member], home: str) -> Iterator[bytes]:
    folders: set[str] = set()
    for one in entries:
        for folder in tar.parents(one.path):
            if folder not in folders:
                folders.add(folder)
                yield tar.header(folder, mode=0o755, mtime=WHEEL_EPOCH, directory=True)
        if one.member.issym():
            yield tar.link(one.path, one.member.linkname, mtime=WHEEL_EPOCH)
        elif one.member.islnk():
            info = tarfile.TarInfo(one.path)
            info.type, info.mode, info.mtime = tarfile.LNKTYPE, one.member.mode, WHEEL_EPOCH
            info.linkname = f"{home}/{one.member.linkname}"
            yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
        else:
            yield tar.header(one.path, mode=one.member.mode, size=one.member.size, mtime=WHEEL_EPOCH)
            yield from _content(one)
            yield tar.padding(one.member.size)
    yield tar.END


def _content(one: _Member) -> Iterator[bytes]:
    content = one.opened.extractfile(one.member)
    assert content is not None
    while piece := content.read(_PIECE):
        yield piece


def _identity(one: _Member) -> tuple[bytes, str, int, bytes]:
    """Type, target, mode and digest, which must be equal if two archives have the path."""
    digest = hashlib.sha256()
    if one.member.isreg():
        for piece in _content(one):
            digest.update(piece)
    return one.member.type, one.member.linkname, one.member.mode, digest.digest()


def _check_folders(entries: Sequence[_Member]) -> None:
    """Refuse a file of one archive that is a directory of another."""
    paths = {one.path for one in entries}
    for one in entries:
        if above := next((folder for folder in tar.parents(one.path) if folder in paths), None):
            raise BadArchive(
                one.archive.filename, f"{one.path!r} is below {above!r}, which is a file of another archive"
            )


class _IteratorFile:
    """A readable file of an iterator of bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._left = pieces, b""

    def read(self, size: int) -> bytes:
        """At most *size* bytes; none at the end."""
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._left = piece
        part, self._left = self._left[:size], self._left[size:]
        return part
