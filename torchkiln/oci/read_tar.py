"""Reads the files of layers: the tree of several layers, or the contents of one.

It shares no code with the modules that write layers, so that comparisons of images find their faults.
"""

from __future__ import annotations

import hashlib
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping

from torchkiln.model.contents import Kind, LayerContents, TreeEntry
from torchkiln.oci.tar_header import DamagedTar
from torchkiln.oci.tar_names import OPAQUE, is_in, removed_by
from torchkiln.oci.tar_reader import TREE_ENTRIES, EntryKind, Stream, TarEntry, TarReader, pieces_of

#: Raised when the stream is damaged or not a tar.
DAMAGED = (OSError, EOFError, ValueError)

_TEXT_LIMIT = 64 << 20  # bytes of a text file; a dpkg status file with all packages of Debian is as large
_TEXTS_LIMIT = 256 << 20  # bytes of all text files of a layer; those of the base have three million
_KINDS: Mapping[EntryKind, Kind] = {
    "file": "file",
    "folder": "folder",
    "link": "link",
    "pipe": "pipe",
    "char": "device",
    "block": "device",
}

PathFilter = Callable[[str], bool]


def apply_layer(tree: dict[str, TreeEntry], stream: Stream, wanted: PathFilter = lambda _: False) -> None:
    """Apply the layer in *stream* to *tree*, as an engine does. *wanted* selects files whose text is kept.

    :raises DAMAGED: the stream is damaged or not a tar.
    """
    upper: dict[str, TreeEntry] = {}
    present = ChainMap(upper, tree)
    deleted = []
    tar = TarReader(pieces_of(stream), most=TREE_ENTRIES)  # an engine exports a whole image as one tar
    for entry in tar:
        if whiteout := _deleted(entry.path):
            deleted.append(whiteout)
        elif entry.path:
            upper[entry.path] = _thing(tar, entry, present, wanted)
    if len(tree) + len(upper) > TREE_ENTRIES:
        raise DamagedTar(f"the layers have more than {TREE_ENTRIES} entries in total")
    _delete_all(tree, deleted)
    for path, thing in upper.items():
        below = tree.get(path)
        if below is not None and below.kind == "folder" and thing.kind != "folder":
            _delete(tree, path)
        for folder in _above(path):
            if folder not in upper and tree.get(folder, _FOLDER).kind != "folder":
                _delete(tree, folder)
            tree.setdefault(folder, _FOLDER)
    tree.update(upper)


def layer_contents(stream: Stream, wanted: PathFilter) -> LayerContents:
    """The contents of the layer in *stream*, with the text or link target of each path that is *wanted*.

    :raises DAMAGED: the stream is damaged or not a tar.
    """
    files = size = text_size = 0
    texts, links, deleted = {}, {}, []
    tar = TarReader(pieces_of(stream))
    for entry in tar:
        path = entry.path
        if whiteout := _deleted(path):
            deleted.append(whiteout)
        elif entry.kind == "file":
            files, size = files + 1, size + entry.size
            if wanted(path):
                text_size += entry.size
                if text_size > _TEXTS_LIMIT:
                    raise DamagedTar(f"the text files have more than {_TEXTS_LIMIT >> 20} MiB in total")
                texts[path] = _content(tar, entry, keep=True)[1]
        elif entry.kind == "link" and wanted(path):
            links[path] = entry.target
        elif entry.kind == "hard link" and wanted(path):
            links[path] = "/" + entry.target
    return LayerContents(files=files, bytes=size, texts=texts, deleted=tuple(deleted), links=links)


#: As engines create a folder that no layer contains.
_FOLDER = TreeEntry(kind="folder", mode=0o755, owner=(0, 0))


def _thing(
    tar: TarReader, entry: TarEntry, present: Mapping[str, TreeEntry], wanted: PathFilter
) -> TreeEntry:
    if entry.kind == "hard link":
        if entry.target not in present:
            raise DamagedTar(f"{entry.path} is a hard link to {entry.target}, which does not exist")
        return present[entry.target]
    sha256, text = "", None
    if entry.kind == "file":
        keep = wanted(entry.path)
        sha256, read = _content(tar, entry, keep=keep)
        text = read if keep else None
    device = entry.kind in ("char", "block")
    return TreeEntry(
        kind=_KINDS[entry.kind],
        mode=0o777 if entry.kind == "link" else entry.mode & 0o7777,
        owner=(entry.uid, entry.gid),
        size=entry.size,
        sha256=sha256,
        link=entry.target,
        device=(entry.kind, *entry.device) if device else None,
        xattrs=entry.xattrs,
        text=text,
    )


def _content(tar: TarReader, entry: TarEntry, *, keep: bool) -> tuple[str, str]:
    """The SHA-256 of the content of *entry*, and with *keep* the content as text."""
    if keep and entry.size > _TEXT_LIMIT:
        raise DamagedTar(f"{entry.path} is too large for a text file: {entry.size} bytes")
    digest, text = hashlib.sha256(), bytearray()
    for piece in tar.content():
        digest.update(piece)
        if keep:
            text += piece
    return digest.hexdigest(), text.decode("utf-8", "backslashreplace")


def _deleted(path: str) -> str:
    """The path that the whiteout *path* deletes; empty if it is not a whiteout."""
    folder, _, name = path.rpartition("/")
    return folder + "/" if name == OPAQUE else removed_by(path)


def _delete_all(tree: dict[str, TreeEntry], deleted: list[str]) -> None:
    """`_delete` each of *deleted*, in one pass over *tree*: a layer may remove a thousand paths."""
    whole = {path for path in deleted if not path.endswith("/")}
    for path in [path for path in tree if whole and is_in(path, whole)]:
        del tree[path]
    for path in deleted:
        if path.endswith("/"):
            _delete(tree, path)


def _delete(tree: dict[str, TreeEntry], path: str) -> None:
    """Delete *path* and everything below it; only what is below it if it ends in a slash."""
    inside = path.rstrip("/") + "/" if path != "/" else ""
    for below in [other for other in tree if other.startswith(inside)]:
        del tree[below]
    tree.pop(path, None)


def _above(path: str) -> Iterator[str]:
    parts = path.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts)))
