"""The entries of one layer → whether together they make one tree, whoever unpacks them."""

from __future__ import annotations

from collections.abc import Iterator

from torchkiln.oci.tar_reader import Entry


class Names:
    """What one layer has said so far. `folders` and `others` are paths."""

    def __init__(self) -> None:
        self.folders: set[str] = set()
        self.others: set[str] = set()
        self._files: set[str] = set()
        self._orphans: dict[str, str] = {}  # a folder that was not seen before what is in it → that

    def wants(self) -> list[str]:
        """Folders that must come from a layer below."""
        return [folder for folder in self._orphans if folder not in self.folders]

    def add(self, entry: Entry) -> Iterator[str]:
        """Take note of *entry*; what is wrong with it beside those before it, a sentence each."""
        path = entry.path
        if entry.kind == "hard link" and entry.target not in self._files:
            yield f"{path}: a hard link to {entry.target!r}, which is no file before it in the layer"
        if path in self.folders or path in self.others:
            yield f"{path or '.'}: twice in the layer"
        if entry.kind == "folder" and path in self._orphans:
            yield f"{self._orphans[path]}: comes before its parent folder {path}"
        (self.folders if entry.kind == "folder" else self.others).add(path)
        if entry.kind in ("file", "hard link"):
            self._files.add(path)
        parent = path.rpartition("/")[0]
        if parent in self.others:
            yield f"{path}: its parent {parent} is not a folder"
        elif parent and parent not in self.folders:
            self._orphans.setdefault(parent, path)
