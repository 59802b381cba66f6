"""A tar's stream → what lies where: the tree that layers make together, or one layer's contents.

Shares nothing with the modules that write layers, so that `diff --files` can tell what these did wrong.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping

from torchkiln.model.contents import Kind, LayerContents, TreeEntry
from torchkiln.oci.tar_header import DamagedTar
from torchkiln.oci.tar_reader import TREE_ENTRIES, Entry, EntryKind, Stream, TarReader, pieces_of

#: What reading raises where the stream is no tar, or a damaged one.
DAMAGED = (OSError, EOFError, ValueError)

_TEXT_LIMIT = 64 << 20  # bytes of a file that is kept whole; dpkg's status of all Debian has as much
_TEXTS_LIMIT = 256 << 20  # bytes of all that are kept of one layer; those of our base have three million
_GONE, _OPAQUE = ".wh.", ".wh..wh..opq"
_PLAIN: Mapping[EntryKind, Kind] = {
    "file": "file",
    "folder": "folder",
    "link": "link",
    "pipe": "pipe",
    "char": "device",
    "block": "device",
}

Wanted = Callable[[str], bool]


def grow(tree: dict[str, TreeEntry], stream: Stream, wanted: Wanted = lambda _: False) -> None:
    """Apply the layer in *stream* to *tree*, as an engine does. *wanted*: of which paths to keep the text.

    :raises DAMAGED: see there.
    """
    upper: dict[str, TreeEntry] = {}
    deleted = []
    tar = TarReader(pieces_of(stream), most=TREE_ENTRIES)  # an engine exports an image as one
    for entry in tar:
        if gone := _deleted(entry.path):
            deleted.append(gone)
        elif entry.path:
            upper[entry.path] = _thing(tar, entry, upper, tree, wanted)
    if len(tree) + len(upper) > TREE_ENTRIES:
        raise DamagedTar(f"the layers have more than {TREE_ENTRIES} entries together")
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


def layer_contents(stream: Stream, wanted: Wanted) -> LayerContents:
    """What the layer in *stream* holds and deletes; of paths that are *wanted* the text, or where they lead.

    :raises DAMAGED: see there.
    """
    files = size = kept = 0
    texts, links, deleted = {}, {}, []
    tar = TarReader(pieces_of(stream))
    for entry in tar:
        path = entry.path
        if gone := _deleted(path):
            deleted.append(gone)
        elif entry.kind == "file":
            files, size = files + 1, size + entry.size
            if wanted(path):
                kept += entry.size
                if kept > _TEXTS_LIMIT:
                    raise DamagedTar(f"its texts have more than {_TEXTS_LIMIT >> 20} MiB")
                texts[path] = _content(tar, entry, keep=True)[1]
        elif entry.kind == "link" and wanted(path):
            links[path] = entry.target
        elif entry.kind == "hard link" and wanted(path):
            links[path] = "/" + entry.target
    return LayerContents(files=files, bytes=size, texts=texts, deleted=tuple(deleted), links=links)


_FOLDER = TreeEntry(kind="folder", mode=0o755, owner=(0, 0))  # one that no layer tells of, as engines make it


def _thing(
    tar: TarReader, entry: Entry, upper: dict[str, TreeEntry], lower: dict[str, TreeEntry], wanted: Wanted
) -> TreeEntry:
    if entry.kind == "hard link":
        found = upper.get(entry.target) or lower.get(entry.target)
        if found is None:
            raise DamagedTar(f"{entry.path} is a hard link to {entry.target}, which is not there")
        return found
    sha256, text = "", None
    if entry.kind == "file":
        keep = wanted(entry.path)
        sha256, read = _content(tar, entry, keep=keep)
        text = read if keep else None
    device = entry.kind in ("char", "block")
    return TreeEntry(
        kind=_PLAIN[entry.kind],
        mode=0o777 if entry.kind == "link" else entry.mode & 0o7777,
        owner=(entry.uid, entry.gid),
        size=entry.size,
        sha256=sha256,
        link=entry.target,
        device=(entry.kind, *entry.device) if device else None,
        xattrs=entry.xattrs,
        text=text,
    )


def _content(tar: TarReader, entry: Entry, *, keep: bool) -> tuple[str, str]:
    """sha256 and, with *keep*, the text."""
    if keep and entry.size > _TEXT_LIMIT:
        raise DamagedTar(f"{entry.path} has {entry.size} bytes, too many for a text")
    digest, kept = hashlib.sha256(), bytearray()
    for piece in tar.content():
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


def _delete(tree: dict[str, TreeEntry], path: str) -> None:
    """Take *path* away with all below it; only what is below where it ends in a slash."""
    inside = path.rstrip("/") + "/" if path != "/" else ""
    for found in [found for found in tree if found.startswith(inside)]:
        del tree[found]
    tree.pop(path, None)


def _above(path: str) -> Iterator[str]:
    """The folders above *path*, highest first."""
    parts = path.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts)))
