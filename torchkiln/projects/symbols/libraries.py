"""Reads what the shared libraries of packages need, and what the image has, from the wheels and the base.

The symbols of wheels and bases are read once, and then kept in the cache.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec

from torchkiln.elf.dynamic import LIBRARY
from torchkiln.errors import BadWheel, BuildFailed, VerificationFailed
from torchkiln.model.lock import LockedBase, LockedCell, LockedWheel
from torchkiln.model.operating_system import operating_system
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.oci.opening import open_layer
from torchkiln.oci.read_tar import DAMAGED
from torchkiln.oci.tar_reader import TarReader, pieces_of
from torchkiln.projects.fixed import fixed_wheels
from torchkiln.projects.symbols.fit import (
    Fault,
    Fit,
    Library,
    Parent,
    Unreadable,
    fit,
    is_c_library,
    is_claimed,
)
from torchkiln.projects.symbols.wheels import library_in, library_sizes, read_libraries
from torchkiln.store.store import Store
from torchkiln.util import codec

RECORDS = "symbols"
_RULES = 4  # raise it when the content of the records changes, or `fit` gives other faults
_LARGEST = 64 << 20  # bytes of a library of the base; libstdc++ has 2 MB
_STREAMS = 6


def library_names(wheel: LockedWheel, store: Store) -> Mapping[str, int]:
    """The paths of the libraries in *wheel*, with their sizes.

    :raises Unreadable: the wheel is not in *store*, and was not read before.
    :raises BadWheel: the wheel is malformed.
    """
    what = ("names", wheel.sha256)
    found: Mapping[str, int] = _recorded(
        store, what, lambda: library_sizes(_place(wheel, store), wheel.filename)
    )
    return found


def libraries_of(wheel: LockedWheel, store: Store, path: str = "") -> tuple[Library, ...]:
    """The libraries of *wheel*, or only that at *path*; malformed ones are left out.

    :raises Unreadable: the wheel is not in *store*, and was not read before.
    :raises BadWheel: the wheel is malformed.
    """

    def read() -> dict[str, Any]:
        found = read_libraries(_place(wheel, store), wheel.filename, path)
        libraries = [
            Library(
                package=wheel.name,
                path=name,
                soname=dynamic.soname,
                needed=dynamic.needed,
                versions={one: some for one, some in dynamic.required.items() if is_c_library(one)},
                undefined=frozenset(symbol for symbol, _, _ in dynamic.undefined if is_claimed(symbol)),
                defined=frozenset().union(*dynamic.defined.values()),
            )
            for name, dynamic in found
        ]
        return {"libraries": msgspec.to_builtins(libraries, order="deterministic")}

    values = _recorded(store, ("libraries", wheel.sha256, path), read)["libraries"]
    return codec.typed(tuple[Library, ...], values)


def parent_of(fixed: Iterable[LockedWheel], base: LockedBase, store: Store) -> Parent:
    """The parent image with the wheels *fixed* and with *base*, as far as they are in *store*."""
    wheels = {wheel.name: wheel for wheel in fixed}

    @cache
    def paths() -> Mapping[str, tuple[LockedWheel, str, int]]:
        """Name of a library -> its wheel, path and size."""
        return {
            path.rpartition("/")[2]: (wheel, path, size)
            for wheel in filter(has_platform, wheels.values())
            for path, size in library_names(wheel, store).items()
        }

    @cache
    def library(name: str) -> Library:
        wheel, path, _ = paths()[name]
        if not (found := libraries_of(wheel, store, path)):
            raise Unreadable(f"{path} of {wheel.name} {wheel.version}, which is malformed")
        return found[0]

    def versions() -> Mapping[str, frozenset[str]]:
        found = _recorded(store, ("base", base.digest), lambda: _versions(base, store))
        return {name: frozenset(listed) for name, listed in found.items()}

    listed = {path.rpartition("/")[2] for wheel in wheels.values() for path in wheel.libraries}
    return Parent(
        of_cuda=lambda: listed or paths().keys(),  # locks of earlier versions list none
        glibc=operating_system(base.os).glibc,
        releases={name: f"{name} {wheel.version}" for name, wheel in wheels.items()},
        places=lambda: {name: (wheel.name, size) for name, (wheel, _, size) in paths().items()},
        library=library,
        versions=cache(versions),
    )


def _versions(base: LockedBase, store: Store) -> dict[str, list[str]]:
    """The libraries of the C and C++ compilers in *base*, by SONAME, with the versions that they define.

    :raises Unreadable: the base is not in *store*.
    :raises VerificationFailed: the base is damaged.
    """
    if not store.has_blob(base.digest, base.size):
        raise Unreadable(f"the base of {base.os}")
    found: dict[str, list[str]] = {}
    try:
        with open_layer(store.blob(base.digest)) as stream:
            tar = TarReader(pieces_of(stream))
            for entry in tar:
                folder, _, name = entry.path.rpartition("/")
                is_library = folder == LINUX_AMD64.libraries and LIBRARY.fullmatch(name)
                if entry.kind != "file" or entry.size > _LARGEST or not is_library:
                    continue
                data = b"".join(tar.content())
                dynamic = library_in(partial(iter, [data]), len(data), lambda _: False)
                if dynamic and is_c_library(soname := dynamic.soname or name):
                    found[soname] = sorted(dynamic.versions)
    except DAMAGED as error:
        what = store.blob(base.digest).name
        raise VerificationFailed(f"{what}: {error}", hint="the cache is damaged: build again") from error
    return found


def is_unread(wheel: LockedWheel, store: Store) -> bool:
    """Whether the libraries of *wheel* were not read yet, and *wheel* is not in *store*."""
    known = store.record(RECORDS, key_of(("libraries", wheel.sha256, ""))) is not None
    return has_platform(wheel) and not known and not store.has_wheel(wheel)


def fetch_for_check(wheels: Iterable[LockedWheel], fetch: Callable[[LockedWheel], object]) -> None:
    """Download *wheels* by *fetch*; one that is not available is not checked: the build reports it.

    :raises BadWheel: a file differs from the lock.
    """

    def fetched(wheel: LockedWheel) -> None:
        try:
            fetch(wheel)
        except BadWheel:
            raise
        except BuildFailed:
            pass

    with ThreadPoolExecutor(_STREAMS) as pool:
        list(pool.map(fetched, wheels))


def has_platform(wheel: LockedWheel) -> bool:
    """Whether *wheel* is for one platform; only such wheels have shared libraries."""
    return not wheel.filename.endswith("-any.whl")


def _place(wheel: LockedWheel, store: Store) -> Path:
    if not store.has_wheel(wheel):
        raise Unreadable(f"{wheel.name} {wheel.version}")
    return store.wheel(wheel)


def _recorded(store: Store, what: tuple[str, ...], read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The record of *what*, made by *read* if there is none."""
    key = key_of(what)
    found = store.record(RECORDS, key)
    if found is None:
        found = read()
        store.put_record(RECORDS, key, found)
    return found


def key_of(what: Sequence[object]) -> str:
    """The key of the record of *what*."""
    return hashlib.sha256(json.dumps([_RULES, *what]).encode()).hexdigest()


def check_wheels(added: Sequence[LockedWheel], cell: LockedCell, store: Store) -> Fit:
    """The faults of the libraries of *added* in the image of *cell*, and what is not in *store*.

    If *store* lacks a wheel of *added*, no fault is returned: that wheel could have what another one needs.

    :raises BadWheel: a wheel is malformed.
    """
    wheels, fixed = [wheel for wheel in added if has_platform(wheel)], fixed_wheels(cell.wheels).values()
    python, hashes = cell.python.minor, [sorted(one.sha256 for one in each) for each in (wheels, fixed)]
    key = key_of(["fit", cell.base.digest, python, *hashes])
    if (record := store.record(RECORDS, key)) is not None:
        faults, doubts = (tuple(Fault(**one) for one in record[kind]) for kind in ("faults", "doubts"))
        return Fit(faults=faults, doubts=doubts)
    libraries: list[Library] = []
    missing: list[str] = []
    for wheel in wheels:
        try:
            libraries += libraries_of(wheel, store)
        except Unreadable as error:
            missing.append(str(error))
    if missing:
        return Fit(unread=tuple(missing))
    result = fit(libraries, parent_of(fixed, cell.base, store), python)
    if not result.unread:
        kinds = {"faults": result.faults, "doubts": result.doubts}
        store.put_record(RECORDS, key, {kind: [*map(asdict, some)] for kind, some in kinds.items()})
    return result
