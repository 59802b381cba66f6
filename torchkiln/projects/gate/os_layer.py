"""Decides whether the layer of OS packages may have an entry. Pure.

The layer may add files of packages, and change dpkg's state. It must not change another file of the parent
image, or add a file that programs find in place of an existing one. ADR 43 says what this proves.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from torchkiln.projects.gate.entries import WHITEOUT, Below, Entry, LayerEntry, OsLayer
from torchkiln.projects.gate.os_accounts import PATHS, Ids, ids_of
from torchkiln.projects.gate.os_names import SystemNames, library_fault, name_faults
from torchkiln.projects.gate.os_places import LOCAL, place_fault
from torchkiln.projects.gate.os_state import STATUS, is_state, state_faults

_STATE = ("etc/", "var/")  # only in these folders may files belong to others than root
_LINKED = frozenset({"usr", "etc", "var", "run", "bin", "sbin", "lib", "lib64", "proc", "dev"})
_STAFF = 50  # id of the group staff in Debian and Ubuntu
_LOADED = re.compile(r"(lib|ld-).*\.so.*")  # names that ldconfig reads


class OsRules:
    """The rules for the layer of OS packages on an image."""

    def __init__(self, layer: OsLayer, below: Below, texts: Mapping[str, str]) -> None:
        self._layer, self._below, self._texts = layer, below, texts
        self._names = SystemNames.of(below)
        self._files = {entry.path: entry for entry in layer.entries if entry.kind == "file"}
        self._ids = self._accounts()

    def written(self, entry: LayerEntry) -> LayerEntry:
        """*entry*; a hard link to a file of the layer becomes a file with the same content."""
        if entry.kind != "hard link" or (file := self._files.get(entry.target)) is None:
            return entry
        return replace(entry, kind="file", size=file.size, sha256=file.sha256)

    def faults(self, entry: LayerEntry, there: Entry | None) -> Iterator[str]:
        """Why the layer must not have *entry*; *there* is what the parent image has at its path."""
        owner = self._layer.owners.get(entry.path)
        named = f" (package {owner})" if owner else ""
        yield from (f"{entry.path}: {fault}{named}" for fault in self._faults(entry, there))

    def missing(self) -> Iterator[str]:
        """The fault of a layer without dpkg's list of packages."""
        if STATUS not in self._files:
            yield f"{STATUS}: not in the first layer above those of the parent image"

    def _faults(self, entry: LayerEntry, there: Entry | None) -> Iterator[str]:
        if fault := _form(entry):
            yield fault
        elif there is not None and entry.kind != "folder":
            yield from self._changed(entry, there)
        elif there is None:
            yield from self._new(entry)

    def _changed(self, entry: LayerEntry, there: Entry) -> Iterator[str]:
        """Faults of an entry at the path of a file of the parent image."""
        same = (there.mode & 0o7777, there.uid, there.gid) == (entry.mode, entry.uid, entry.gid)
        if not (entry.kind == there.kind == "file" and is_state(entry.path) and same):
            yield "a file of the parent image, which no package may change"
        else:
            yield from state_faults(entry.path, self._layer, self._below, self._names)

    def _new(self, entry: LayerEntry) -> Iterator[str]:
        path, kind = entry.path, entry.kind
        yield from self._owner(entry)
        if fault := place_fault(path, kind, self._below.tree):
            yield fault
        elif kind != "folder":
            yield from name_faults(path, kind, self._texts.get(path, ""), self._below, self._names)
            yield from state_faults(path, self._layer, self._below, self._names)
        if kind == "link":
            yield from _link(path, entry.target)
        elif kind == "hard link":
            yield from self._hard_link(entry)
        elif path in self._layer.sonames:
            yield from self._soname(path, self._layer.sonames[path])

    def _owner(self, entry: LayerEntry) -> Iterator[str]:
        """Faults of mode and owner of a new entry."""
        if entry.kind == "folder" and LOCAL.fullmatch(entry.path):
            if (entry.mode, entry.uid, entry.gid) not in ((0o755, 0, 0), (0o2775, 0, _STAFF)):
                yield f"has the mode {entry.mode:04o} and belongs to {entry.uid}:{entry.gid}"
            return
        state = entry.path.startswith(_STATE)
        allowed = 0o3775 if state and entry.kind == "folder" else 0o755
        if state and entry.kind == "folder" and entry.mode & 0o1000:
            allowed |= 0o2
        if entry.kind != "link" and entry.mode & ~allowed:
            yield f"has the mode {entry.mode:04o}"
        users, groups = (self._ids.users, self._ids.groups) if state else (frozenset(), frozenset())
        if entry.uid not in {0, *users} or entry.gid not in {0, *groups}:
            yield f"belongs to {entry.uid}:{entry.gid}"

    def _hard_link(self, entry: LayerEntry) -> Iterator[str]:
        file = self._files.get(entry.target)
        if file is None:
            yield f"a hard link to /{entry.target}, which is not a file of this layer"
        elif (file.mode, file.uid, file.gid) != (entry.mode, entry.uid, entry.gid):
            yield f"a hard link whose mode or owner differs from /{entry.target}"
        elif file.path in self._below.tree:
            yield f"a hard link to /{entry.target}, a file of the parent image"

    def _soname(self, path: str, soname: str | None) -> Iterator[str]:
        if soname is None and _LOADED.fullmatch(posixpath.basename(path)):
            yield "a library that cannot be read"
        elif soname and (fault := library_fault(soname, self._below, self._names)):
            yield f"a library with the SONAME {soname}: {fault}"

    def _accounts(self) -> Ids:
        before, after = (
            {path: files[path].decode("utf-8", "replace") for path in PATHS & files.keys()}
            for files in (self._layer.below, self._layer.files)
        )
        return ids_of(before, after)


def _form(entry: LayerEntry) -> str:
    """Why *entry* is refused at any path: its kind, attributes or name; empty if it is not."""
    if posixpath.basename(entry.path).startswith(WHITEOUT):
        return "a whiteout: packages must not remove files of the parent image"
    if entry.kind not in ("file", "folder", "link", "hard link"):
        return f"a {entry.kind} is not allowed"
    if entry.xattrs:
        return "has extended attributes"
    return "" if entry.path.isprintable() else "has control characters in its name"


def _link(path: str, target: str) -> Iterator[str]:
    """The fault of a symbolic link that leads out of the system's folders."""
    place = posixpath.normpath(posixpath.join("/", posixpath.dirname(path), target)).lstrip("/")
    if place.partition("/")[0] not in _LINKED or place.startswith("usr/local/"):
        yield f"a symbolic link to /{place} is not allowed"
