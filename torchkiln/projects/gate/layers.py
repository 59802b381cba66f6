"""Decides what the layers of a project change in the parent image. Pure.

Each entry of each layer is checked; labels and files that describe the layers are not used. Allowed are code
in /app, project.json, files of packages in the environment, whiteouts of packages that may be replaced, and
OS packages in a separate layer (`os_layer.py`). Everything else is refused.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence

from torchkiln.errors import printable
from torchkiln.model.project import APP, PROJECT_JSON
from torchkiln.projects.gate.entries import WHITEOUT, Below, Changes, Entry, LayerEntry, OsLayer, Recorded
from torchkiln.projects.gate.os_layer import OsRules
from torchkiln.projects.gate.packages import in_app, in_environment, installed

_LISTED = 20  # maximum paths outside of the project's folders, and faults of OS packages, in a list
_FOLDER = LayerEntry(path="", kind="folder")  # engines create a folder that no layer has


def changes(
    layers: Sequence[Sequence[LayerEntry]], below: Below, recorded: Recorded, system: OsLayer | None = None
) -> Changes:
    """What *layers*, lowest first, change in the image *below*.

    :param system: the layer of OS packages, if project.json lists any; it is below *layers*.
    """
    walk = _Walk(below, recorded)
    of_system = _spread(walk.apply_system(system)) if system else []
    for layer in layers:
        walk.apply(layer, top=layer is layers[-1])
    packages = installed(walk.over, below, recorded)
    listed, more = of_system[:_LISTED], len(of_system) - _LISTED
    listed += [f"{more} more faults of OS packages"] if more > 0 else []
    faults = (*listed, *walk.faults, *_outside(walk.outside, below), *packages.faults)
    return Changes(
        of_system=bool(of_system),
        faults=tuple(dict.fromkeys(map(printable, faults))),
        replaced=tuple(sorted(walk.replaced | set(packages.replaced))),
        added=packages.added,
        at_start=tuple(sorted(map(printable, walk.at_start))),
        has_source=any(
            path.startswith(f"{APP}/src/") and found is not None and found.kind == "file"
            for path, found in walk.over.items()
        ),
    )


class _Walk:
    """Applies the layers to the parent image's list of files, one after the other, and collects faults."""

    def __init__(self, below: Below, recorded: Recorded) -> None:
        self.over: dict[str, Entry | None] = {}  # what the layers have at a path; None: they removed it
        self.faults: list[str] = []
        self.outside: list[str] = []  # paths outside of the folders in which a project may have files
        self.replaced: set[str] = set()
        self.at_start: set[str] = set()
        self._below, self._recorded = below, recorded
        self._paths = sorted(below.tree)

    def apply_system(self, layer: OsLayer) -> list[tuple[str, str]]:
        """Apply the layer of OS packages; returns its faults, each with the package that has the file."""
        rules = OsRules(layer, self._below, self._recorded.texts)
        faults = [("", fault) for fault in rules.missing()]
        for entry in layer.entries:
            there = self._at(entry.path)
            found = [*self._parents(entry.path), *self._kind(entry, there)] or rules.faults(entry, there)
            faults += [(layer.owners.get(entry.path, ""), fault) for fault in found]
            self.over[entry.path] = rules.written(entry)
        return faults

    def apply(self, layer: Sequence[LayerEntry], *, top: bool) -> None:
        """Apply *layer*, whiteouts first: they delete files of the layers below it."""
        whiteouts = [entry for entry in layer if _name(entry.path).startswith(WHITEOUT)]
        for entry in whiteouts:
            self.faults += _form(entry)
            self.faults += self._whiteout(entry)
        for entry in layer:
            if _name(entry.path).startswith(WHITEOUT):
                continue
            faults = [*_form(entry), *self._parents(entry.path)] or list(self._entry(entry, top=top))
            self.faults += faults
            self.over[entry.path] = entry

    def _at(self, path: str) -> Entry | None:
        return self.over[path] if path in self.over else self._below.tree.get(path)

    def _inside(self, path: str) -> Iterator[str]:
        """*path* and everything below it in the parent image."""
        for number in range(bisect.bisect_left(self._paths, path), len(self._paths)):
            found = self._paths[number]
            if found == path or found.startswith(f"{path}/"):
                yield found
            elif not found.startswith(path):  # "a.b" sorts between "a" and "a/b"
                return

    def _whiteout(self, entry: LayerEntry) -> Iterator[str]:
        folder, slash, name = entry.path.rpartition("/")
        gone = folder + slash + name.removeprefix(WHITEOUT)
        if entry.kind != "file" or entry.size or name.startswith(WHITEOUT + WHITEOUT) or name == WHITEOUT:
            yield f"{entry.path}: invalid whiteout: opaque, or not an empty file"
            return
        yield from self._parents(entry.path)
        found = [path for path in self._inside(gone) if self._at(path) is not None]
        files = [path for path in found if (there := self._at(path)) and there.kind != "folder"]
        if not files:
            yield f"{entry.path}: removes /{gone}, and the parent image has no file there"
        owners = {path: self._below.owners.get(path) for path in files}
        for path, owner in owners.items():
            if owner is None or owner in self._below.fixed:
                of = f"a file of {owner}" if owner else "which belongs to no package"
                yield f"{entry.path}: removes /{path}, {of}"
                break
        self.replaced.update(owner for owner in owners.values() if owner)
        self.over.update(dict.fromkeys(found))

    def _parents(self, path: str) -> Iterator[str]:
        """The fault of a path below a link: an engine would write where the link leads."""
        folder = path.rpartition("/")[0]
        while folder:
            there = self._at(folder)
            if there is None:
                self.over[folder] = _FOLDER
            elif there.kind != "folder":
                yield f"{path}: /{folder} is a {there.kind}, not a folder"
                return
            folder = folder.rpartition("/")[0]

    def _entry(self, entry: LayerEntry, *, top: bool) -> Iterator[str]:
        path, there = entry.path, self._at(entry.path)
        if faults := list(self._kind(entry, there)):
            yield from faults
        elif there is not None and entry.kind == "folder":
            return
        elif path == APP or path.startswith(f"{APP}/"):
            yield from in_app(entry, self._below, self._recorded)
        elif path.startswith(f"{self._below.prefix}/"):
            yield from in_environment(entry, self._below, self._recorded)
            self._note(entry)
        elif path == PROJECT_JSON and entry.kind == "file":
            if not top:
                yield f"{path}: must be in the top layer"
        elif not (entry.kind == "folder" and path in _above(f"{self._below.prefix}/x", PROJECT_JSON)):
            self.outside.append(path)

    def _kind(self, entry: LayerEntry, there: Entry | None) -> Iterator[str]:
        """The fault of an entry that replaces a folder, or a file by a folder, or changes a folder."""
        if there is None or "folder" not in (there.kind, entry.kind):
            return
        if there.kind != entry.kind:
            yield f"{entry.path}: a {entry.kind} replaces a {there.kind} of the layers below"
        elif (there.mode & 0o7777, there.uid, there.gid) != (entry.mode & 0o7777, entry.uid, entry.gid):
            owner = f"{entry.uid}:{entry.gid}"
            yield f"{entry.path}: the folder gets another mode or owner: {entry.mode:04o}, {owner}"

    def _note(self, entry: LayerEntry) -> None:
        """Note the parent image's package whose file *entry* replaces, and the name of a .pth file."""
        there, below = self._below.tree.get(entry.path), self._below
        if there is not None and there.kind == "file" and there.sha256 != entry.sha256:
            self.replaced.update(filter(None, [below.owners.get(entry.path)]))
        folder, _, name = entry.path.rpartition("/")
        if folder == below.site and name.endswith(".pth"):
            self.at_start.add(name)


def _form(entry: LayerEntry) -> Iterator[str]:
    """Why *entry* is refused at any path: its kind, mode, owner, attributes or name."""
    if entry.kind not in ("file", "folder", "link"):
        of = f" to /{entry.target}" if entry.target else ""
        yield f"{entry.path}: a {entry.kind}{of} is not allowed"
    elif entry.xattrs:
        yield f"{entry.path}: has extended attributes"
    elif entry.kind != "link" and entry.mode & ~0o755:
        yield f"{entry.path}: has the mode {entry.mode:04o}"
    elif entry.uid or entry.gid:
        yield f"{entry.path}: belongs to {entry.uid}:{entry.gid}, not to root"
    elif not entry.path.isprintable():
        yield f"{entry.path}: has control characters in its name"


def _outside(paths: Sequence[str], below: Below) -> Iterator[str]:
    """A fault for each of the first *paths*; the last fault has the number of the rest."""
    where = f"outside of /{APP} and /{below.prefix}"
    yield from (f"{path}: {where}" for path in paths[:_LISTED])
    if len(paths) > _LISTED:
        yield f"{len(paths) - _LISTED} more {where}"


def _spread(faults: Sequence[tuple[str, str]]) -> list[str]:
    """The texts of *faults* in an order in which the first few name as many packages as possible."""
    firsts: dict[str, str] = {}
    for package, fault in faults:
        firsts.setdefault(package, fault)
    named = [fault for package, fault in firsts.items() if package]
    return list(dict.fromkeys([*named, *(fault for _, fault in faults)]))


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _above(*paths: str) -> set[str]:
    """The folders above *paths*."""
    return {path[:at] for path in paths for at, char in enumerate(path) if char == "/"}
