"""Checks that the entries of a layer give the same tree with every program that unpacks them."""

from __future__ import annotations

from collections.abc import Iterator, Set

from torchkiln.oci.tar_reader import TarEntry

_WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"


def removed_by(path: str) -> str:
    """The path of lower layers that the entry *path* removes; empty if it is not a whiteout of one path."""
    folder, slash, name = path.rpartition("/")
    if not name.startswith(_WHITEOUT) or name in (_WHITEOUT, OPAQUE):
        return ""
    return folder + slash + name.removeprefix(_WHITEOUT)


def is_in(path: str, removed: Set[str]) -> bool:
    """Whether *path* or a folder above it is one of *removed*."""
    while path and path not in removed:
        path = path.rpartition("/")[0]
    return bool(path)


class LayerPaths:
    """The paths of the entries added so far: `folders`, `others`, and `removed`, the targets of whiteouts."""

    def __init__(self) -> None:
        self.folders: set[str] = set()
        self.others: set[str] = set()
        self.removed: set[str] = set()
        self._above: set[str] = set()  # every folder above an entry, whether it has an entry or not
        self._files: set[str] = set()
        self._orphans: dict[str, str] = {}  # a folder that has no entry yet → the first entry in it

    def missing_parents(self) -> list[str]:
        """Folders that a lower layer must contain."""
        return [folder for folder in self._orphans if folder not in self.folders]

    def add(self, entry: TarEntry) -> Iterator[str]:
        """Record *entry* and yield a sentence for each conflict with earlier entries."""
        path = entry.path
        if entry.kind == "hard link" and entry.target not in self._files:
            yield f"{path}: a hard link to {entry.target!r}, which is not an earlier file of the layer"
        if path in self.folders or path in self.others:
            yield f"{path or '.'}: duplicate entry"
        if entry.kind == "folder" and path in self._orphans:
            yield f"{self._orphans[path]}: precedes its parent directory {path}"
        (self.folders if entry.kind == "folder" else self.others).add(path)
        if entry.kind in ("file", "hard link"):
            self._files.add(path)
        yield from self._removal(path)
        parent = path.rpartition("/")[0]
        if parent in self.others:
            yield f"{path}: its parent {parent} is not a directory"
        elif parent and parent not in self.folders:
            self._orphans.setdefault(parent, path)

    def _removal(self, path: str) -> Iterator[str]:
        """Faults of a layer that removes what it also contains: the result depends on the program."""
        folder = path.rpartition("/")[0]
        while folder and folder not in self._above:
            self._above.add(folder)
            folder = folder.rpartition("/")[0]
        if removed := removed_by(path):
            self.removed.add(removed)
            if removed in self.folders or removed in self.others or removed in self._above:
                yield f"{path}: the layer also contains {removed}, which it removes"
        elif is_in(path, self.removed):
            yield f"{path}: the layer also removes it, or a folder above it"
