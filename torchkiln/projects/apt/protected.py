"""Decides whether packages of the archive change what the tests of an image cover. Pure.

dpkg lets no package replace another package's files, but the scripts of packages can change any file. So the
layer that they made is compared with the lower layers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

from torchkiln.errors import BuildFailed
from torchkiln.model.plan import WHITEOUT
from torchkiln.oci.tar import parents
from torchkiln.oci.tar_reader import TarReader, pieces_of
from torchkiln.projects.apt import loader_cache
from torchkiln.projects.apt.loader_cache import LoaderCache, parse_cache
from torchkiln.projects.apt.package_paths import (
    LIST,
    LIST_LIMIT,
    is_of_image,
    is_of_wheels,
    owners_of,
    path_fault,
    pth_file,
)

_LISTED = 8  # maximum number of faults in a message


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """The contents of layers: the kind of each path, and the package to which dpkg's lists assign it."""

    kinds: Mapping[str, str]
    owners: Mapping[str, str]
    libraries: LoaderCache = field(default_factory=dict)  # empty: the layers have no ld.so.cache


def contents_of(streams: Iterable[BinaryIO]) -> Contents:
    """The contents of the layers in the tars *streams*, lowest first.

    :raises ValueError: one is not a tar, or its ld.so.cache cannot be read.
    """
    kinds: dict[str, str] = {}
    lists: dict[str, str] = {}
    roots: dict[str, str] = {}
    libraries: LoaderCache = {}
    for stream in streams:
        tar = TarReader(pieces_of(stream))
        for entry in tar:
            kinds[entry.path] = entry.kind
            if entry.kind == "link" and "/" not in entry.path:
                roots[entry.path] = entry.target.strip("/")  # lib -> usr/lib
            if entry.kind != "file":
                continue
            if (found := LIST.fullmatch(entry.path)) and entry.size <= LIST_LIMIT:
                lists[found[1]] = b"".join(tar.content()).decode(errors="backslashreplace")
            elif entry.path == loader_cache.PATH and entry.size <= loader_cache.LIMIT:
                libraries = parse_cache(b"".join(tar.content()))
    return Contents(kinds=kinds, owners=owners_of(lists, roots), libraries=libraries)


def demand_harmless(lower: Contents, layer: Contents, *, what: str) -> tuple[str, ...]:
    """Check the *layer* of packages on *lower*; *what* names it.

    :returns: warnings.
    :raises BuildFailed: *layer* changes files of packages of the lower layers, has files that no package may
        have, or has libraries that the loader would find instead of those of the lower layers.
    """
    faults = list(_faults(lower, layer))
    if layer.libraries:
        faults += loader_cache.changed_libraries(lower.libraries, layer.libraries)
    if faults:
        raise refused(faults, what)
    return (*_notes(lower, layer),)


def demand_apart(paths: Iterable[str], own: Collection[str], *, what: str) -> None:
    """Check that none of the *paths* of a layer is one of the image's *own* files.

    :raises BuildFailed: a path is one of *own*.
    """
    if faults := [f"{path} is a file of the image" for path in paths if path in own]:
        raise refused(faults, what)


def refused(faults: list[str], what: str) -> BuildFailed:
    """The error for a layer with *faults*."""
    more = [f"and {len(faults) - _LISTED} more"] if len(faults) > _LISTED else []
    return BuildFailed(
        "\n".join((f"{what}: packages of the archive would change the image:", *faults[:_LISTED], *more)),
        hint="remove the package from apt in the project's settings",
    )


def _faults(lower: Contents, layer: Contents) -> Iterator[str]:
    folders = {folder for path in layer.kinds for folder in parents(path)}
    for path, kind in layer.kinds.items():
        if fault := _misplaced(path, kind, lower, layer):
            yield fault
        elif is_of_image(path):
            if path not in folders:  # the files in a folder are reported, not the folder
                yield f"{_named(path, layer)} is in a folder of the image"
        elif kind == "folder":  # a folder is in the layer because of its files
            continue
        elif path in lower.kinds and path in lower.owners:
            yield f"{path} of {lower.owners[path]} was changed"
        elif fault := path_fault(path):
            yield f"{_named(path, layer)} {fault}"


def _misplaced(path: str, kind: str, lower: Contents, layer: Contents) -> str:
    """Why a layer of packages cannot have *path*: it would delete files, or replace a folder or a link."""
    if any(part.startswith(WHITEOUT) for part in path.split("/")):
        return f"{path} would delete files"
    kinds = [(folder, layer.kinds.get(folder, lower.kinds.get(folder))) for folder in parents(path)]
    if wrong := next((folder for folder, found in kinds if found not in (None, "folder")), None):
        return f"{path} is below {wrong}, which is not a folder"
    if path in lower.kinds and "folder" in (kind, lower.kinds[path]) and kind != lower.kinds[path]:
        return f"{path} would replace a {lower.kinds[path]} by a {kind}"
    return ""


def _notes(lower: Contents, layer: Contents) -> Iterator[str]:
    for name in sorted(layer.libraries.keys() - lower.libraries.keys()):
        if is_of_wheels(name):
            path = layer.libraries[name][0].lstrip("/")
            yield f"{path} has the name of a library in the wheels of torch or NVIDIA"
    for path in sorted(layer.kinds):
        if (name := pth_file(path)) and path not in lower.kinds:
            yield f"Python runs at each start: {name}"


def _named(path: str, layer: Contents) -> str:
    owner = layer.owners.get(path)
    return f"{path} of {owner}" if owner else path
