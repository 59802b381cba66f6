"""A tar's stream → what lies where: the tree that layers make together, or one layer's contents.

Reads what others wrote, by Python's tarfile; shares nothing with the modules that write layers, so that
`diff --files` can tell what these did wrong.
"""

from __future__ import annotations

import hashlib
import posixpath
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from torchkiln.contents import Kind, LayerContents, Thing
from torchkiln.oci.tarscan import TarScan

#: What reading raises where the stream is no tar, or a damaged one: tarfile lets through a header's numbers.
DAMAGED = (tarfile.TarError, OSError, EOFError, ValueError, OverflowError)

_PIECE = 1 << 20
_TEXT_LIMIT = 64 << 20  # bytes of a file that is kept whole; dpkg's status of all Debian has as much
_TEXTS_LIMIT = 256 << 20  # bytes of all that are kept of one layer; those of our base have three million
_GONE, _OPAQUE = ".wh.", ".wh..wh..opq"
_XATTR = "SCHILY.xattr."

Wanted = Callable[[str], bool]


def grow(tree: dict[str, Thing], stream: BinaryIO, wanted: Wanted = lambda _: False) -> None:
    """Apply the layer in *stream* to *tree*, as an engine does. *wanted*: of which paths to keep the text.

    :raises DAMAGED: see there.
    """
    upper: dict[str, Thing] = {}
    deleted = []
    with open_tar(stream) as tar:
        for member in tar:
            path = path_of(member)
            if gone := _deleted(path):
                deleted.append(gone)
            elif path:
                upper[path] = _thing(tar, member, path, upper, tree, wanted)
    for path in deleted:
        _delete(tree, path)
    for path, thing in upper.items():
        below = tree.get(path)
        if below is not None and below.kind == "folder" and thing.kind != "folder":
            _delete(tree, path)
        for folder in _above(path):
            if folder not in upper and tree.get(folder, _FOLDER).kind != "folder":
                _delete(tree, folder)
            tree.setdefault(folder, _FOLDER)
    tree.update(upper)


def layer_contents(stream: BinaryIO, wanted: Wanted) -> LayerContents:
    """What the layer in *stream* holds and deletes; of paths that are *wanted* the text, or where they lead.

    :raises DAMAGED: see there.
    """
    files = size = kept = 0
    texts, links, deleted = {}, {}, []
    with open_tar(stream) as tar:
        for member in tar:
            path = path_of(member)
            if gone := _deleted(path):
                deleted.append(gone)
            elif member.isreg():
                files, size = files + 1, size + member.size
                if wanted(path):
                    kept += member.size
                    if kept > _TEXTS_LIMIT:
                        raise tarfile.ReadError(f"its texts have more than {_TEXTS_LIMIT >> 20} MiB")
                    texts[path] = _content(tar, member, keep=True)[1]
            elif member.issym() and wanted(path):
                links[path] = member.linkname
            elif member.islnk() and wanted(path):
                links[path] = "/" + member.linkname.lstrip("/")
    return LayerContents(files=files, bytes=size, texts=texts, deleted=tuple(deleted), links=links)


@contextmanager
def open_tar(stream: BinaryIO) -> Iterator[tarfile.TarFile]:
    """*stream* as a tar of which each entry is read once, in order; extension headers are bounded."""
    with tarfile.open(fileobj=cast(BinaryIO, _Scanned(stream)), mode="r|", bufsize=_PIECE) as tar:
        yield tar


def path_of(member: tarfile.TarInfo) -> str:
    """Its path from the root; empty for the root."""
    path = posixpath.normpath(member.name).lstrip("/")
    return "" if path == "." else path


class _Scanned:
    """A tar's stream that `TarScan` sees first: tarfile takes extension headers of any length into memory."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._scan = stream, TarScan()

    def read(self, size: int) -> bytes:
        """As a file."""
        data = self._stream.read(size)
        try:
            self._scan.feed(data)
        except ValueError:  # its own words are for programmers
            raise tarfile.ReadError("a header in it cannot be read") from None
        return data


_FOLDER = Thing(kind="folder", mode=0o755, owner=(0, 0))  # one that no layer tells of, as engines make it


def _thing(
    tar: tarfile.TarFile,
    member: tarfile.TarInfo,
    path: str,
    upper: dict[str, Thing],
    lower: dict[str, Thing],
    wanted: Wanted,
) -> Thing:
    if member.islnk():
        target = posixpath.normpath(member.linkname).lstrip("/")
        found = upper.get(target) or lower.get(target)
        if found is None:
            raise tarfile.ReadError(f"{path} is a hard link to {target}, which is not there")
        return found
    kind: Kind
    size, sha256, text, link, device = 0, "", None, "", None
    if member.issym():
        kind, link = "link", member.linkname
    elif member.isdir():
        kind = "folder"
    elif member.isreg():
        kind, size, keep = "file", member.size, wanted(path)
        sha256, read = _content(tar, member, keep=keep)
        text = read if keep else None
    elif member.isfifo():
        kind = "pipe"
    elif member.ischr() or member.isblk():
        kind = "device"
        device = ("char" if member.ischr() else "block", member.devmajor, member.devminor)
    else:
        raise tarfile.ReadError(f"{path} is of unknown type {member.type!r}")
    return Thing(
        kind=kind,
        mode=0o777 if kind == "link" else member.mode & 0o7777,
        owner=(member.uid, member.gid),
        size=size,
        sha256=sha256,
        link=link,
        device=device,
        xattrs=tuple(
            sorted(
                (name.removeprefix(_XATTR), value)
                for name, value in member.pax_headers.items()
                if name.startswith(_XATTR)
            )
        ),
        text=text,
    )


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo, *, keep: bool) -> tuple[str, str]:
    """sha256 and, with *keep*, the text."""
    if keep and member.size > _TEXT_LIMIT:
        raise tarfile.ReadError(f"{member.name} has {member.size} bytes, too many for a text")
    content = tar.extractfile(member)
    assert content is not None
    digest, kept = hashlib.sha256(), b""
    while piece := content.read(_PIECE):
        digest.update(piece)
        if keep:
            kept += piece
    return digest.hexdigest(), kept.decode("utf-8", "backslashreplace")


def _deleted(path: str) -> str:
    """What the entry *path* deletes of the layers below, if it is a whiteout."""
    folder, slash, name = path.rpartition("/")
    if name == _OPAQUE:
        return folder + "/"
    return folder + slash + name.removeprefix(_GONE) if name.startswith(_GONE) else ""


def _delete(tree: dict[str, Thing], path: str) -> None:
    """Take *path* away with all below it; only what is below where it ends in a slash."""
    inside = path.rstrip("/") + "/" if path != "/" else ""
    for found in [found for found in tree if found.startswith(inside)]:
        del tree[found]
    tree.pop(path, None)


def _above(path: str) -> Iterator[str]:
    """The folders above *path*, highest first."""
    parts = path.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts)))
