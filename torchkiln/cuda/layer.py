"""Makes one layer from the extracted archives, below /usr/local/cuda-12.1, with the pinned encoder.

The layer does not depend on a cell's Python or wheels, so all cells of a CUDA version share it.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from torchkiln.errors import BadArchive
from torchkiln.model.layer import Blob
from torchkiln.model.lock import LockedArchive
from torchkiln.model.recipe import WHEEL_EPOCH
from torchkiln.oci import tar
from torchkiln.oci.encode import encode
from torchkiln.oci.tar_reader import IteratorFile, pieces_of


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
