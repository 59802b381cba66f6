"""Decides whether a project may have a file in /app or in the environment, and compares packages. Pure.

RECORD says to which package a file of the environment belongs. A file is refused if no RECORD in the
project's layers lists it, or if it belongs to a fixed package.
"""

from __future__ import annotations

import base64
import binascii
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from torchkiln.model.project import APP, PROJECT_JSON
from torchkiln.projects.gate.entries import Below, Entry, LayerEntry, Recorded
from torchkiln.projects.gate.names import (
    distribution_of,
    loaded_groups,
    module_of,
    regular_module_of,
    starts,
)

ROOTS = ("", "src/")  # the folders of PYTHONPATH, relative to /app
_SAME_MAJOR = "numpy"  # torch is built for the binary interface of one major version
_NAMESPACE = "nvidia"  # other packages may have folders of their own in it
_OF_PYTHON = re.compile(r"bin/(python[\d.]*|[Aa]ctivate([.].*)?)(/.*)?|pyvenv[.]cfg(/.*)?|lib64(/.*)?")
_UNHASHED = re.compile(r"\.pyc$|\.dist-info/RECORD(\.jws|\.p7s)?$")
_LIBRARY = re.compile(r".*\.so(\.[0-9.]+)?")
_INFO = re.compile(r"([^/]+)\.(?i:dist-info)/METADATA")
_NAME = re.compile(r"^Name:[ \t]*(\S+)[ \t\r]*$", re.MULTILINE)
_VERSION = re.compile(r"^Version:[ \t]*(\S+)[ \t\r]*$", re.MULTILINE)


def in_app(entry: LayerEntry, below: Below, recorded: Recorded) -> Iterator[str]:
    """Why the project's code must not contain *entry*."""
    inside = entry.path.removeprefix(APP).lstrip("/")
    if entry.kind == "link" and not _stays(inside, entry.target):
        yield f"{entry.path}: a symbolic link that leads out of /{APP}"
    if entry.kind == "folder":
        return
    for root in ROOTS:
        if not inside.startswith(root):
            continue
        name = inside[len(root) :]
        if starts(name, entry.kind):
            yield f"{entry.path}: Python runs it at each start"
        elif (module := module_of(name, entry.kind)) in below.modules:
            yield f"{entry.path}: would be imported in place of {module}"
        elif (module := regular_module_of(name, entry.kind)) in below.standard:
            yield f"{entry.path}: would be imported in place of {module} of the standard library"
        else:
            yield from _metadata(entry, name, below, recorded)


def _stays(inside: str, target: str) -> bool:
    """Whether the link *inside* /app to *target* leads to a place in /app."""
    place = posixpath.normpath(posixpath.join(posixpath.dirname(inside), target))
    return bool(inside) and not target.startswith("/") and place != ".." and not place.startswith("../")


def _metadata(entry: LayerEntry, name: str, below: Below, recorded: Recorded) -> Iterator[str]:
    """Faults of metadata of a package; *name* is relative to a folder on sys.path."""
    path, package = entry.path, distribution_of(name)
    if package and entry.kind == "link":
        yield f"{path}: a link to metadata of a package"
    if package in below.fixed:
        yield f"{path}: metadata of {package}, which is fixed"
    if package and (groups := loaded_groups(recorded.texts.get(path, ""))):
        yield f"{path}: entry points that torch or triton load at import: {', '.join(groups)}"


def in_environment(entry: LayerEntry, below: Below, recorded: Recorded) -> Iterator[str]:
    """Why a package of the project must not have *entry*, which is below the environment's folder."""
    path, there = entry.path, below.tree.get(entry.path)
    inside, owner = path.removeprefix(f"{below.prefix}/"), below.owners.get(path, "")
    in_site = path.removeprefix(f"{below.site}/") if path.startswith(f"{below.site}/") else ""
    unit = _unit(path, below)
    if owner in below.fixed or unit:
        if there is None or entry.kind != "file" or _content(entry) != _content(there):
            yield f"{path}: changes a file of {owner}" if owner else f"{path}: is in a folder of {unit}"
        return
    if _OF_PYTHON.fullmatch(inside):
        yield f"{path}: belongs to Python's environment"
    elif there is not None and there.kind != "folder" and not owner:
        yield f"{path}: replaces a file of the parent image that belongs to no package"
    elif entry.kind == "link":
        yield f"{path}: a symbolic link, which wheels cannot contain"
    elif fault := _in_site(entry, in_site, below) if in_site else "":
        yield f"{path}: {fault}"
    elif entry.kind == "file":
        name = path.rpartition("/")[2]
        if posixpath.dirname(path) == below.scripts and there is None and name in below.programs:
            yield f"{path}: would be started in place of /{below.programs[name]}"
        yield from _metadata(entry, in_site, below, recorded)
        if fault := _record_fault(path, entry.sha256, recorded):
            yield f"{path}: {fault}"


def _unit(path: str, below: Below) -> str:
    """The fixed package that owns *path* or a folder above it; empty if there is none."""
    folder = path
    while folder:
        if folder in below.units:
            return below.units[folder]
        folder = folder.rpartition("/")[0]
    return ""


def _content(entry: Entry) -> tuple[str, str, int, int, int]:
    return entry.kind, entry.sha256, entry.mode & 0o7777, entry.uid, entry.gid


def _in_site(entry: LayerEntry, name: str, below: Below) -> str:
    """The fault of a file in site-packages; empty if it has none."""
    module = module_of(name, entry.kind)
    if starts(name, entry.kind):
        return "Python runs it at each start"
    if name.endswith(".egg-link"):
        return "a link to a package elsewhere"
    if module in below.modules:
        top, _, rest = name.partition("/")
        own = top == _NAMESPACE and (entry.kind == "folder" or "/" in rest)
        if not own:
            return f"would be imported in place of {module}, or as a part of it"
        library = name.rpartition("/")[2]
        if _LIBRARY.fullmatch(library) and library in below.libraries:
            return f"could be loaded in place of {library} of {below.libraries[library]}"
    return ""


def _record_fault(path: str, sha256: str, recorded: Recorded) -> str:
    """Why no RECORD of the project's layers lists *path* with this hash; empty if one does."""
    hashes = recorded.files.get(path)
    if hashes is None:
        return "not listed in the RECORD of any package"
    if _UNHASHED.search(path) or any(_hex(found) == sha256 for found in hashes):
        return ""
    return "differs from its RECORD"


def _hex(recorded: str) -> str:
    """*recorded*, a hash from a RECORD, in hex; empty if it is not a SHA-256."""
    algorithm, _, value = recorded.partition("=")
    try:
        data = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
    except (ValueError, binascii.Error):
        return ""
    return data.hex() if algorithm == "sha256" else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class InstalledPackages:
    """The packages of the project's layers, and those of the parent image that they replace."""

    faults: tuple[str, ...]
    added: tuple[str, ...]  # "datasets 4.8.5"
    replaced: tuple[str, ...]


def installed(over: Mapping[str, Entry | None], below: Below, recorded: Recorded) -> InstalledPackages:
    """Compare the installed packages with project.json, and find packages that are installed twice.

    :param over: path -> what the project's layers have there; None: they removed it.
    """
    before, after = _packages(below.tree, below, {}), defaultdict[str, list[str]](list)
    added: dict[str, str] = {}
    faults: list[str] = []
    gone = {path for path in over if over[path] is None}
    for path, (name, version) in before.items():
        if path not in over:
            after[name].append(version)
    for path, (name, version) in _packages(over, below, recorded.texts).items():
        if path in gone:
            continue
        after[name].append(version)
        added[name] = version
        stated = _NAME.findall(_head(recorded.texts.get(path, "")))
        if [canonicalize_name(one) for one in stated] != [name]:
            faults.append(f"{path}: names {', '.join(stated) or 'no package'}, not {name}")
        if not _same_version(version, recorded.wheels.get(name, "")):
            listed = recorded.wheels.get(name, "no such package")
            faults.append(f"{name} {version} is installed; /{PROJECT_JSON} lists {listed}")
    names = {name for name, _ in before.values()}
    twice = {name: ", ".join(found) for name, found in after.items() if len(found) > 1}
    missing = recorded.wheels.keys() - added.keys()
    faults += [f"{name} is listed in /{PROJECT_JSON}, but not installed" for name in missing]
    faults += [f"{name} is installed twice: {found}" for name, found in twice.items()]
    faults += [f"{name} is removed, but no other version is installed" for name in names - after.keys()]
    for name, version in before.values():
        if name == _SAME_MAJOR and _major(version) != _major(added.get(name, version)):
            faults.append(
                f"{name} {added[name]} differs in the major version from {version} of the parent image"
            )
    return InstalledPackages(
        faults=tuple(sorted(faults)),
        added=tuple(f"{name} {added[name]}" for name in sorted(added)),
        replaced=tuple(sorted(names & added.keys())),
    )


def _packages(
    tree: Mapping[str, Entry | None], below: Below, texts: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """Path of each METADATA -> name and version. The version is from *texts*, else from the folder's name."""
    found = {}
    for path in tree:
        name = path.removeprefix(f"{below.site}/")
        if path.startswith(f"{below.site}/") and (info := _INFO.fullmatch(name)):
            stated = _VERSION.findall(_head(texts.get(path, "")))
            found[path] = distribution_of(name), ", ".join(stated) or info[1].partition("-")[2]
    return found


def _head(metadata: str) -> str:
    """The fields of METADATA, without the description."""
    return re.split(r"\r?\n\r?\n", metadata, maxsplit=1)[0]


def _same_version(one: str, other: str) -> bool:
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return False


def _major(version: str) -> int | None:
    try:
        return Version(version).major
    except InvalidVersion:
        return None
