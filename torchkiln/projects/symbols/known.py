"""Provides the symbols of wheels and bases, which are read once and then kept in the cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from torchkiln.elf.dynamic import Dynamic
from torchkiln.model.lock import LockedBase, LockedStandalone, LockedWheel
from torchkiln.model.recipe import minor
from torchkiln.projects.symbols.base import read_base, read_standalone
from torchkiln.projects.symbols.fit import Unreadable
from torchkiln.projects.symbols.library import Library, from_json, is_claimed, to_json
from torchkiln.projects.symbols.names import of_torch
from torchkiln.projects.symbols.wheels import library_sizes, read_libraries
from torchkiln.store.store import Store

RECORDS = "symbols"
_RULES = 1  # raise it when the content of the records changes


def library_names(wheel: LockedWheel, store: Store) -> Mapping[str, int]:
    """The paths of the libraries in *wheel*, with their sizes.

    :raises Unreadable: the wheel is not in *store*, and was not read before.
    :raises BadWheel: the wheel is malformed.
    """
    values = _recorded(
        store,
        ("names", wheel.sha256),
        lambda: {"sizes": library_sizes(_place(wheel, store), wheel.filename)},
    )
    found: Mapping[str, int] = values["sizes"]
    return found


def libraries_of(wheel: LockedWheel, store: Store) -> tuple[Library, ...]:
    """The libraries of *wheel*, without symbols that the check does not use.

    :raises Unreadable: the wheel is not in *store*, and was not read before.
    :raises BadWheel: the wheel is malformed.
    """

    def read() -> dict[str, Any]:
        found = read_libraries(_place(wheel, store), wheel.filename, keep=is_claimed)
        return {path: to_json(dynamic) for path, dynamic in found}

    return tuple(
        Library(package=wheel.name, path=path, dynamic=from_json(values))
        for path, values in _recorded(store, ("libraries", wheel.sha256), read).items()
    )


def _library(wheel: LockedWheel, path: str, store: Store) -> Dynamic:
    """One library of a fixed package, with the symbols that other libraries may need."""

    def read() -> dict[str, Any]:
        # The libraries of CUDA have C interfaces with few symbols; other libraries may need all of them.
        keep = is_claimed if wheel.name == "torch" else _is_of_torch_or_c
        found = dict(read_libraries(_place(wheel, store), wheel.filename, keep=keep, only={path}))
        return {"dynamic": to_json(found[path]) if path in found else None}

    values = _recorded(store, ("library", wheel.sha256, path), read)["dynamic"]
    if values is None:
        raise Unreadable(f"{path} of {wheel.name} {wheel.version}, which is malformed")
    return from_json(values)


def _is_of_torch_or_c(symbol: str) -> bool:
    """Whether *symbol* is one of torch, or not a C++ symbol."""
    return not symbol.startswith("_Z") or of_torch(symbol)


class CachedParent:
    """The parent image of a project, by the wheels, the base and the standalone Python in the cache."""

    def __init__(
        self,
        fixed: Iterable[LockedWheel],
        base: LockedBase,
        store: Store,
        standalone: LockedStandalone | None = None,
    ) -> None:
        self._wheels = {wheel.name: wheel for wheel in fixed}
        self._base, self._store, self._standalone = base, store, standalone
        self._libraries: dict[str, Dynamic] = {}

    @cached_property
    def _places(self) -> Mapping[str, tuple[LockedWheel, str, int]]:
        """Name of a library -> its wheel, path and size."""
        return {
            path.rpartition("/")[2]: (wheel, path, size)
            for wheel in self._wheels.values()
            if has_platform(wheel)
            for path, size in library_names(wheel, self._store).items()
        }

    def owner(self, name: str) -> str:
        found = self._places.get(name)
        return found[0].name if found else ""

    def fixed(self) -> Mapping[str, int]:
        return {name: size for name, (_, _, size) in self._places.items()}

    def library(self, name: str) -> Dynamic:
        if name not in self._libraries:
            wheel, path, _ = self._places[name]
            self._libraries[name] = _library(wheel, path, self._store)
        return self._libraries[name]

    @cached_property
    def _of_base(self) -> Mapping[str, Any]:
        base, store = self._base, self._store

        def read() -> dict[str, Any]:
            if not store.has_blob(base.digest, base.size):
                raise Unreadable(f"the base of {base.os}")
            found = read_base(store.blob(base.digest), minor(base.python))
            libraries = {name: to_json(each) for name, each in found.libraries.items()}
            return {"libraries": libraries, "python": sorted(found.python)}

        return _recorded(store, ("base", base.digest), read)

    def base(self) -> Mapping[str, Dynamic]:
        return {name: from_json(values) for name, values in self._of_base["libraries"].items()}

    def python(self) -> frozenset[str]:
        standalone, store = self._standalone, self._store
        if standalone is None:
            return frozenset(self._of_base["python"])
        blob, size, version = standalone.digest, standalone.size, standalone.version

        def read() -> dict[str, Any]:
            if not store.has_blob(blob, size):
                raise Unreadable(f"Python {version}")
            return {"python": sorted(read_standalone(store.blob(blob), version))}

        return frozenset(_recorded(store, ("standalone", blob), read)["python"])

    def release(self, package: str) -> str:
        return f"{package} {self._wheels[package].version}" if package in self._wheels else package


def is_unread(wheel: LockedWheel, store: Store) -> bool:
    """Whether the libraries of *wheel* were not read yet, and *wheel* is not in *store*."""
    known = store.record(RECORDS, _key(("libraries", wheel.sha256))) is not None
    return has_platform(wheel) and not known and not store.has_wheel(wheel)


def has_platform(wheel: LockedWheel) -> bool:
    """Whether *wheel* is for one platform; only such wheels have shared libraries."""
    return not wheel.filename.endswith("-any.whl")


def _place(wheel: LockedWheel, store: Store) -> Path:
    if not store.has_wheel(wheel):
        raise Unreadable(f"{wheel.name} {wheel.version}")
    return store.wheel(wheel)


def _recorded(store: Store, what: tuple[str, ...], read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The record of *what*, made by *read* if there is none."""
    key = _key(what)
    found = store.record(RECORDS, key)
    if found is None:
        found = read()
        store.put_record(RECORDS, key, found)
    return found


def _key(what: tuple[str, ...]) -> str:
    return hashlib.sha256(json.dumps([_RULES, *what]).encode()).hexdigest()
