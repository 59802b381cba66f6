"""Lists the entries of a layer with their hashes, and joins the lists of an image's layers.

The list is made while the verified bytes of a layer are read, so a tree on disk can be compared with it later
(`runtimes/verified_root.py`), and an image with its lock (`smoke/verification.py`).
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from torchkiln.oci.tar_names import is_in, removed_by
from torchkiln.oci.tar_reader import TarEntry

IndexedKind = Literal["file", "folder", "link", "hard link"]
_KINDS: tuple[IndexedKind, ...] = ("file", "folder", "link", "hard link")
_TEXT_LIMIT = 16 << 20  # bytes of one text; the longest RECORD, of torch, has 2 MB
_TEXT_NAMES = ("/RECORD", "/METADATA")


@dataclass(frozen=True, slots=True)
class IndexedEntry:
    """One entry of a layer; `path` is relative to the root, and "" for the root itself."""

    path: str
    kind: IndexedKind
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime: int | None = None  # None, only in a tree: a folder that no layer has
    size: int = 0
    sha256: str = ""  # of a file, hex
    target: str = ""  # of a symbolic link as written, of a hard link the path of the file
    text: str | None = None  # of RECORD and METADATA of a Python distribution


#: The entries of a layer, in their order.
LayerIndex = tuple[IndexedEntry, ...]


@dataclass(frozen=True, slots=True)
class TreeItem:
    """The entry at one path of an image; `layer` is the number of its layer, from 0."""

    entry: IndexedEntry
    layer: int
    over: int | None = None  # the lowest layer with this path; None: only `layer` has it


def listed(entry: TarEntry, sha256: str = "", text: str | None = None) -> IndexedEntry:
    """The IndexedEntry of *entry*, whose content has the given SHA-256.

    :raises ValueError: *entry* is a device or a pipe.
    """
    kind = next((kind for kind in _KINDS if kind == entry.kind), None)
    if kind is None:
        raise ValueError(f"{entry.path}: a device or a pipe")
    return IndexedEntry(
        path=entry.path,
        kind=kind,
        mode=entry.mode & 0o7777,
        uid=entry.uid,
        gid=entry.gid,
        mtime=entry.mtime,
        size=entry.size,
        sha256=sha256,
        target=entry.target,
        text=text,
    )


class Content:
    """Passes on the content of an entry, hashes it, and keeps that of RECORD and METADATA files."""

    def __init__(self, entry: TarEntry, pieces: Iterable[memoryview]) -> None:
        self._entry, self._pieces = entry, pieces
        self._hash = hashlib.sha256()
        named = ".dist-info/" in entry.path and entry.path.endswith(_TEXT_NAMES)
        self._text = bytearray() if named and entry.size <= _TEXT_LIMIT else None

    def __iter__(self) -> Iterator[memoryview]:
        for piece in self._pieces:
            self._hash.update(piece)
            if self._text is not None:
                self._text += piece
            yield piece

    def listed(self) -> IndexedEntry:
        """The IndexedEntry, after the content was read."""
        if self._entry.kind != "file":
            return listed(self._entry)
        text = None if self._text is None else self._text.decode("utf-8", "replace")
        return listed(self._entry, self._hash.hexdigest(), text)


def encoded(index: LayerIndex) -> bytes:
    rows = [
        (
            *(row.path, _KINDS.index(row.kind), row.mode, row.uid, row.gid, row.mtime),
            *(row.size, row.sha256, row.target, row.text),
        )
        for row in index
    ]
    return zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), 1)


def decoded(data: bytes) -> LayerIndex:
    """The inverse of `encoded`, for data that this machine signed.

    :raises ValueError: it is not an index.
    """
    try:
        rows = json.loads(zlib.decompress(data))
        return tuple(IndexedEntry(path, _KINDS[kind], *rest) for path, kind, *rest in rows)
    except (TypeError, IndexError, zlib.error) as error:
        raise ValueError(f"not an index of a layer: {error}") from None


def joined(layers: Iterable[LayerIndex]) -> Mapping[str, TreeItem]:
    """The tree of an image: for each path the entry of the highest layer. A hard link becomes a file."""
    tree: dict[str, TreeItem] = {}
    for number, layer in enumerate(layers):
        if removed := {path for entry in layer if (path := removed_by(entry.path))}:
            tree = {path: item for path, item in tree.items() if not is_in(path, removed)}
        for entry in layer:
            if removed and removed_by(entry.path):
                continue
            folder = entry.path.rpartition("/")[0]
            while folder and folder not in tree:  # engines create missing parents
                tree[folder] = TreeItem(IndexedEntry(folder, "folder", mode=0o755), number)
                folder = folder.rpartition("/")[0]
            if entry.kind == "hard link":
                entry = replace(tree[entry.target].entry, path=entry.path)
            below = tree.get(entry.path)
            over = None if below is None else below.layer if below.over is None else below.over
            tree[entry.path] = TreeItem(entry, number, over)
    return tree
