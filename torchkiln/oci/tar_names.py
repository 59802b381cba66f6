"""Checks that the entries of a layer give the same tree with every program that unpacks them."""

from __future__ import annotations

from collections.abc import Iterator

from torchkiln.oci.tar_reader import TarEntry


class LayerPaths:
    """The paths of a layer so far: `folders` and `others`."""

    def __init__(self) -> None:
        self.folders: set[str] = set()
        self.others: set[str] = set()
        self._files: set[str] = set()
        self._orphans: dict[
            str, str
        ] = {}  # a folder that the layer has not named yet → the first entry in it

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
        parent = path.rpartition("/")[0]
        if parent in self.others:
            yield f"{path}: its parent {parent} is not a directory"
        elif parent and parent not in self.folders:
            self._orphans.setdefault(parent, path)
