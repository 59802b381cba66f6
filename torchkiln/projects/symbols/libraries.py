"""Refuses packages of a project whose shared libraries need a library or a symbol that the image lacks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby, islice
from operator import attrgetter

from torchkiln.errors import ConfigError, Unresolvable
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.model.project import ProjectLock
from torchkiln.projects.fixed import fixed_wheels
from torchkiln.projects.symbols.fit import Fault, Fit, Library, Unreadable, fit
from torchkiln.projects.symbols.known import RECORDS, has_platform, key_of, libraries_of, parent_of
from torchkiln.store.store import Store

_LIBRARY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!-]*\.so[A-Za-z0-9_.+!-]*")
_SHOWN = 3  # faults of a package
_MOST = 8  # packages


def check_wheels(added: Sequence[LockedWheel], cell: LockedCell, store: Store) -> Fit:
    """The faults of the libraries of *added* in the image of *cell*, and what is not in *store*.

    If *store* lacks a wheel of *added*, no fault is returned: that wheel could have what another one needs.

    :raises BadWheel: a wheel is malformed.
    """
    wheels, fixed = [wheel for wheel in added if has_platform(wheel)], fixed_wheels(cell.wheels).values()
    python, hashes = cell.python.minor, [sorted(one.sha256 for one in each) for each in (wheels, fixed)]
    key = key_of(["fit", cell.base.digest, python, *hashes])
    if (record := store.record(RECORDS, key)) is not None:
        return Fit(faults=tuple(Fault(**values) for values in record["faults"]))
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
        store.put_record(RECORDS, key, {"faults": [asdict(fault) for fault in result.faults]})
    return result


def require_fitting(lock: ProjectLock, cell: LockedCell, store: Store) -> tuple[str, ...]:
    """Check that the shared libraries of the packages of *lock* can be loaded in the image of *cell*.

    :return: what is not in *store*, so that some libraries could not be checked: "numpy 2.1.0".
    :raises Unresolvable: a library cannot be loaded in the image.
    :raises BadWheel: a wheel is malformed.
    """
    found = check_wheels(lock.wheels, cell, store)
    allowed = {*lock.may_lack}
    faults = [fault for fault in found.faults if not {fault.package, fault.library} & allowed]
    if faults:
        grouped = groupby(faults, key=attrgetter("package"))
        packages = {name: _lines([*own]) for name, own in islice(grouped, _MOST)}
        versions = {wheel.name: wheel.version for wheel in lock.wheels}
        lines = [
            line
            for name, own in packages.items()
            for line in (f"{name} {versions[name]} is not built for {lock.parent}:", *own)
        ]
        raise Unresolvable(
            "\n".join(lines),
            hint=f"use another release of {' or '.join(packages)}; if the package works without these"
            f" libraries: project lock DIR --allow-missing {next(iter(packages))}",
        )
    return found.unread


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
