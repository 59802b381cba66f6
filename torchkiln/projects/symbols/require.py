"""Refuses packages of a project whose shared libraries need a library or a symbol that the image lacks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby, islice
from operator import attrgetter

from torchkiln.errors import ConfigError, Unresolvable
from torchkiln.model.lock import LockedCell
from torchkiln.model.project import ProjectLock
from torchkiln.projects.symbols.fit import Fault, Library, Unreadable, is_cuda_library
from torchkiln.projects.symbols.libraries import check_wheels, has_platform, libraries_of
from torchkiln.projects.symbols.os_libraries import advice, lacking, package_of, release_for
from torchkiln.store.store import Store

_LIBRARY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!-]*\.so[A-Za-z0-9_.+!-]*")
_SHOWN = 3  # faults of a package
_MOST = 8  # packages


def require_fitting(
    lock: ProjectLock, cell: LockedCell, store: Store
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Check that the shared libraries of the packages of *lock* can be loaded in the image of *cell*.

    :return: sentences about packages that may work in part; and what is not in *store*: "numpy 2.1.0".
    :raises Unresolvable: a library cannot be loaded in the image.
    :raises BadWheel: a wheel is malformed.
    """
    found, allowed = check_wheels(lock.wheels, cell, store), {*lock.may_lack}
    demanded = (
        [one for one in some if not {one.package, one.library} & allowed]
        for some in (found.faults, found.doubts)
    )
    faults, doubts = (
        {name: [*own] for name, own in groupby(some, key=attrgetter("package"))} for some in demanded
    )
    cuda = cell.resolution.cell.cuda.partition(".")[0]
    versions = {wheel.name: wheel.version for wheel in lock.wheels}
    if faults:
        packages = [*islice(faults, _MOST)]
        lines = [
            line
            for name in packages
            for line in (f"{name} {versions[name]} is not built for {lock.parent}:", *_lines(faults[name]))
        ]
        of_cuda = dict.fromkeys(one.package for one in found.faults if is_cuda_library(one.library))
        built = [_built_for(name, cuda) for name in of_cuda if name in packages]
        raise Unresolvable(
            "\n".join(lines),
            hint=f"{''.join(built)}use another release of {' or '.join(packages)}; if the package works"
            f" without these libraries: project lock DIR --allow-missing {packages[0]}",
        )
    notes = (
        f"{name} {versions[name]}: {own[0].path} {own[0].sentence}; without it the package may run on the CPU"
        f" only; {_built_for(name, cuda)}if it is not needed: project lock DIR --allow-missing {name}"
        for name, own in doubts.items()
    )
    return tuple(notes), found.unread


def _built_for(package: str, cuda: str) -> str:
    found = release_for(package, cuda)
    return f"require {found}, which is built for CUDA {cuda}; " if found else ""


def require_system(lock: ProjectLock, cell: LockedCell, store: Store) -> tuple[str, ...]:
    """Check that the image of *cell*, with the OS packages of *lock*, has the libraries that packages need.

    :return: a sentence for each package that may work in part.
    :raises Unresolvable: a package has extension modules, and none of them can be imported.
    """
    os, requested = cell.base.os, (lock.apt.requested if lock.apt else ())
    there = [one.name for layer in (cell.base, cell.tools, lock.apt) if layer for one in layer.packages]
    libraries: list[Library] = []
    for wheel in filter(has_platform, lock.wheels):
        with suppress(Unreadable):  # `require_fitting` names it
            libraries += libraries_of(wheel, store) if wheel.name not in lock.may_lack else ()
    versions = {wheel.name: wheel.version for wheel in lock.wheels}
    refused, notes = list[str](), list[str]()
    for one in lacking(libraries, os, there, cell.python.minor, lock.may_lack):
        named = [f"{name} ({package_of(name, os) or f'no package of {os}'})" for name in one.libraries]
        lacks = f"{one.path} needs {', '.join(named)}, which the image does not have"
        broken, count = one.modules
        part = f"this affects {broken} of its {count} modules" if broken < count else ""
        way = advice(one.package, (*one.libraries, *one.more), os, requested)
        text = f"{one.package} {versions[one.package]}: {'; '.join(filter(None, (lacks, part, way)))}"
        (refused if 0 < broken == count else notes).append(text)
    if refused:
        hint = "if a package works without these libraries: project lock DIR --allow-missing PACKAGE"
        raise Unresolvable("\n".join(refused), hint=hint)
    return tuple(notes)


def require_known(may_lack: Sequence[str], lock: ProjectLock) -> None:
    """:raises ConfigError: a name is neither that of a library nor that of a package of *lock*."""
    faults = [
        f"--allow-missing {name}: neither a library nor a package that the project adds"
        for name in may_lack
        if not _is_known(name, lock)
    ]
    if faults:
        raise ConfigError.of(
            faults, hint="name a library (libtbb.so.12), or a package of torchkiln.lock.json"
        )


def still_known(may_lack: Sequence[str], lock: ProjectLock) -> tuple[str, ...]:
    """The names in *may_lack* that are those of libraries or of packages of *lock*, sorted."""
    return tuple(sorted({name for name in may_lack if _is_known(name, lock)}))


def _is_known(name: str, lock: ProjectLock) -> bool:
    return _LIBRARY.fullmatch(name) is not None or any(wheel.name == name for wheel in lock.wheels)


def _lines(faults: Sequence[Fault]) -> list[str]:
    more = [f"  and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
    return [*(f"  {fault.path} {fault.sentence}" for fault in faults[:_SHOWN]), *more]
