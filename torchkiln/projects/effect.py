"""Determines which files of the parent image a project's packages change; refuses changes to fixed packages.

torch, NVIDIA's libraries and triton stay as they were tested: none of their files is replaced, removed or
shadowed, and no file is added to their folders. The files of packages are listed by their RECORDs.
"""

from __future__ import annotations

import csv
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from torchkiln.errors import BadWheel, BuildFailed, VerificationFailed
from torchkiln.model.lock import LockedWheel
from torchkiln.model.plan import OverlayFile, OverlayLink
from torchkiln.oci.opening import open_layer
from torchkiln.oci.read_tar import DAMAGED, layer_contents
from torchkiln.oci.tar import parents
from torchkiln.wheel import install
from torchkiln.wheel.content import SecondRead, whole
from torchkiln.wheel.entries import entries
from torchkiln.wheel.install import Scheme
from torchkiln.wheel.source import WheelFile

_RECORD = ".dist-info/RECORD"

#: Path relative to / -> its hash as RECORD writes it, empty if RECORD has none.
Files = Mapping[str, str]
_LISTED = 8  # most lines of a message
_NAMESPACES = frozenset({"nvidia"})  # namespace packages: several distributions have folders in them
_START = frozenset({"sitecustomize", "usercustomize"})
SUFFIX = r"(\.pyc?|(\.[^/]*)?\.so)"
MODULE_FILE = re.compile(rf"([^./]+){SUFFIX}")


def files_in_layer(blob: Path, scheme: Scheme) -> dict[str, Files]:
    """The files, with byte-code, of each package that was installed into the layer *blob*, by package name.

    :raises VerificationFailed: the layer is damaged, or a RECORD names a file outside of the environment.
    """
    try:
        with open_layer(blob) as stream:
            texts = layer_contents(stream, lambda path: path.endswith(_RECORD)).texts
    except DAMAGED as error:
        raise VerificationFailed(f"{blob.name}: {error}", hint="the cache is damaged: build again") from error
    return files_of_records(texts, scheme)


def files_of_records(texts: Mapping[str, str], scheme: Scheme) -> dict[str, Files]:
    """The files of each distribution in site-packages, by its name.

    :param texts: path -> contents of each RECORD of an image or a layer.
    :raises VerificationFailed: a RECORD is invalid, or names a file outside of the environment.
    """
    found: dict[str, Files] = {}
    for path, text in texts.items():
        folder, _, info = path.removesuffix("/RECORD").rpartition("/")
        if folder == scheme.site:
            name = canonicalize_name(info.removesuffix(".dist-info").rpartition("-")[0])
            try:
                rows = filter(None, install.record_rows(text))
                found[name] = {_absolute(row[0], path, scheme): row[1] for row in rows}
            except (csv.Error, IndexError) as error:
                raise VerificationFailed(f"/{path}: invalid RECORD: {error}") from None
    return found


def _absolute(row: str, record: str, scheme: Scheme) -> str:
    """The path in *row* of *record*, relative to /."""
    path = posixpath.normpath(f"{scheme.site}/{row}")
    if row.startswith("/") or not path.startswith(f"{scheme.prefix[1:]}/"):
        raise VerificationFailed(f"/{record} names a file outside of {scheme.prefix}: {row[:200]!r}")
    return path


def files_of_wheel(path: Path, wheel: LockedWheel, scheme: Scheme) -> Files:
    """The files that an installation of *wheel*, which is at *path*, creates; without byte-code.

    :raises BadWheel: the wheel cannot be read.
    """
    name = install.parse_name(wheel.filename)
    try:
        with WheelFile(path, path.stat().st_size) as file:  # `entries` limits the size of each text
            found = {entry.name: entry for entry in entries(file, wheel.filename)}
            info = install.dist_info(found, name)
            there = {f"{info}/RECORD", f"{info}/entry_points.txt"} & found.keys()
            texts = {one: whole(SecondRead(file, found[one]), found[one], wheel.filename) for one in there}
            record = install.parse_record(texts[f"{info}/RECORD"], name)
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise BadWheel(wheel.filename, f"RECORD cannot be read: {error}") from error
    launchers = dict.fromkeys(install.launchers(texts.get(f"{info}/entry_points.txt", b""), name, scheme), "")
    return launchers | {
        install.destination(entry, name, scheme): record.get(entry, ("", ""))[0] for entry in found
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """What the packages of a project change in the parent image."""

    removed: tuple[str, ...] = ()  # paths of replaced packages: files, or whole folders; sorted
    at_start: tuple[str, ...] = ()  # files that Python runs at each start: "x.pth of x"
    modules: tuple[str, ...] = ()  # names by which the fixed packages are imported; sorted
    overwritten: tuple[str, ...] = ()  # sentences about overwritten files of other packages


def effect_of(
    parent: Mapping[str, Files],
    replaced: Mapping[str, Files],
    added: Mapping[str, Files],
    fixed: Set[str],
    scheme: Scheme,
) -> Effect:
    """What the packages *added* change in an image.

    :param parent: the files of the image's packages that stay, by package; without byte-code if they were
        read from the RECORD of a wheel.
    :param replaced: the files of the image's packages that are removed, by package; with byte-code.
    :param added: the files of the project's packages, by package.
    :param fixed: names of the packages of *parent* that must not change.
    :raises BuildFailed: a package would change a fixed one, has a sitecustomize or usercustomize module, or
        has a file where another has a folder.
    """
    faults = sorted(
        (
            *_changes_fixed(parent, added, fixed, scheme),
            *_folder_conflicts(parent, added),
            *(f"{owner}: {path} runs at each start of Python" for owner, path in _customize(added, scheme)),
        )
    )
    if faults:
        more = [f"and {len(faults) - _LISTED} more"] if len(faults) > _LISTED else []
        raise BuildFailed(
            "\n".join(("packages of the project conflict with the image:", *faults[:_LISTED], *more)),
            hint="remove the package from the project, or use another version of it",
        )
    pth = (
        f"{posixpath.basename(path)} of {owner}"
        for owner, files in added.items()
        for path in files
        if posixpath.dirname(path) == scheme.site and path.endswith(".pth")
    )
    return Effect(
        removed=removed_paths(replaced, parent, scheme),
        at_start=tuple(sorted(pth)),
        modules=tuple(sorted(fixed_modules(parent, fixed, scheme))),
        overwritten=tuple(sorted(_overwritten(parent, added, scheme))),
    )


def removed_paths(
    replaced: Mapping[str, Files], kept: Mapping[str, Files], scheme: Scheme
) -> tuple[str, ...]:
    """The paths to remove so that all files of *replaced* are deleted, but none of *kept*.

    A folder is removed as a whole if *kept* has no file in it: Python would import an empty folder as a
    namespace package.
    """
    if not replaced:
        return ()
    owned = {path for files in kept.values() for path in files}
    folders = {
        folder for path in (*owned, f"{scheme.site}/x", f"{scheme.scripts}/x") for folder in parents(path)
    }
    # These folders have the byte-code of kept sources; RECORDs of wheels do not list it.
    folders |= {f"{posixpath.dirname(path)}/__pycache__" for path in owned if path.endswith(".py")}
    gone = {path for files in replaced.values() for path in files if path not in owned}
    return tuple(
        sorted({next((above for above in parents(path) if above not in folders), path) for path in gone})
    )


def shadowing(
    files: Iterable[OverlayFile | OverlayLink], roots: Iterable[str], modules: Iterable[str]
) -> tuple[str, ...]:
    """The *files* that Python would import in place of *modules*.

    :param roots: folders on PYTHONPATH, "" or "src/".
    """
    names = frozenset(modules)
    kinds = ((file.path, "link" if isinstance(file, OverlayLink) else "file") for file in files)
    return tuple(
        path
        for path, kind in kinds
        for root in roots
        if path.startswith(root) and module_of(path.removeprefix(root), kind) in names
    )


def module_of(path: str, kind: str = "file") -> str:
    """The top-level module to which *path*, relative to a folder on sys.path, belongs; empty if none.

    A folder without __init__ counts: it is a namespace package. A link counts: it may lead to a package.
    """
    top, _, below = path.partition("/")
    if below or kind == "folder":
        return top if "." not in top else ""
    found = MODULE_FILE.fullmatch(path)
    return found[1] if found else path if kind == "link" and "." not in path else ""


def starts(path: str, kind: str = "file") -> bool:
    """Whether Python imports *path* at each start, if its folder is on sys.path."""
    return module_of(path, kind) in _START


def fixed_units(parent: Mapping[str, Files], fixed: Set[str], scheme: Scheme) -> dict[str, str]:
    """The folders in site-packages that belong to one fixed package -> the name of that package."""
    units = {}
    for name in fixed & parent.keys():
        for path in parent[name]:
            parts = path.removeprefix(f"{scheme.site}/").split("/")
            count = 2 if parts[0] in _NAMESPACES else 1
            if path.startswith(f"{scheme.site}/") and len(parts) > count:
                units[f"{scheme.site}/{'/'.join(parts[:count])}"] = name
    return units


def fixed_modules(parent: Mapping[str, Files], fixed: Set[str], scheme: Scheme) -> set[str]:
    """The names by which the fixed packages are imported."""
    site = f"{scheme.site}/"
    paths = (path for name in fixed & parent.keys() for path in parent[name] if path.startswith(site))
    return {module_of(path.removeprefix(site)) for path in paths} - {""}


def _changes_fixed(
    parent: Mapping[str, Files], added: Mapping[str, Files], fixed: Set[str], scheme: Scheme
) -> Iterator[str]:
    owners = {path: (name, digest) for name in fixed & parent.keys() for path, digest in parent[name].items()}
    units = fixed_units(parent, fixed, scheme)
    depth = scheme.site.count("/") + 1
    for package, files in added.items():
        for path, digest in files.items():
            owner, own = owners.get(path, ("", ""))
            if owner and not (own and own == digest):
                yield f"{package}: {path} is a file of {owner}"
            elif not owner:
                parts = path.split("/")
                for count in (depth + 1, depth + 2):
                    if len(parts) > count and (unit := units.get("/".join(parts[:count]))):
                        yield f"{package}: {path} is in a folder of {unit}"


def _folder_conflicts(parent: Mapping[str, Files], added: Mapping[str, Files]) -> Iterator[str]:
    """Faults for files where the image has a folder, or the reverse: an engine would remove the folder."""
    below = {path: name for name, files in parent.items() for path in files}
    folders = {folder: name for path, name in below.items() for folder in parents(path)}
    for package, files in added.items():
        for path in files:
            if path in folders:
                yield f"{package}: the file {path} replaces a folder of {folders[path]}"
            for folder in parents(path):
                if folder in below:
                    yield f"{package}: the folder {folder} replaces a file of {below[folder]}"


def _customize(added: Mapping[str, Files], scheme: Scheme) -> Iterator[tuple[str, str]]:
    site = f"{scheme.site}/"
    for package, files in added.items():
        for path in files:
            if path.startswith(site) and starts(path.removeprefix(site)):
                yield package, path


def _overwritten(parent: Mapping[str, Files], added: Mapping[str, Files], scheme: Scheme) -> Iterator[str]:
    below = {path: (name, digest) for name, files in parent.items() for path, digest in files.items()}
    for package, files in added.items():
        paths = [path for path, digest in files.items() if path in below and below[path][1] != digest]
        for owner in sorted({below[path][0] for path in paths}):
            own = [path for path in paths if below[path][0] == owner]
            more = f" and {len(own) - 1} more" if len(own) > 1 else ""
            yield f"{package} overwrites files of {owner}: {own[0].removeprefix(f'{scheme.site}/')}{more}"
