"""Refuses packages of a project whose shared libraries need a library or a symbol that the image lacks."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from torchkiln.errors import ConfigError, Unresolvable
from torchkiln.model.lock import LockedCell
from torchkiln.model.project import ProjectLock
from torchkiln.projects.fixed import fixed_wheels
from torchkiln.projects.symbols.check import check_wheels
from torchkiln.projects.symbols.fit import Fault
from torchkiln.store.store import Store

_LIBRARY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!-]*\.so[A-Za-z0-9_.+!-]*")
_SHOWN = 3  # faults of a package
_MOST = 8  # packages


def require_fitting(lock: ProjectLock, cell: LockedCell, store: Store) -> tuple[str, ...]:
    """Check that the shared libraries of the packages of *lock* can be loaded in the image of *cell*.

    :return: what is not in *store*, so that some libraries could not be checked: "numpy 2.1.0".
    :raises Unresolvable: a library cannot be loaded in the image.
    :raises BadWheel: a wheel is malformed.
    """
    fixed = fixed_wheels(cell.wheels)
    found = check_wheels(lock.wheels, tuple(fixed.values()), cell.base, store, cell.standalone)
    faults = [fault for fault in found.faults if not _allowed(fault, lock.may_lack)]
    if faults:
        packages: dict[str, list[Fault]] = {fault.package: [] for fault in faults}
        for fault in faults:
            packages[fault.package].append(fault)
        versions = {wheel.name: wheel.version for wheel in lock.wheels}
        lines = [
            line
            for name, own in list(packages.items())[:_MOST]
            for line in (f"{name} {versions[name]} is not built for {lock.parent}:", *_lines(own))
        ]
        names = " or ".join(list(packages)[:_MOST])
        raise Unresolvable(
            "\n".join(lines),
            hint=f"use another release of {names}; if the package works without these libraries:"
            f" project lock DIR --allow-missing {next(iter(packages))}",
        )
    return found.unread


def require_known(may_lack: Sequence[str], lock: ProjectLock) -> None:
    """:raises ConfigError: a name is neither that of a library nor that of a package of *lock*."""
    unknown = [name for name in may_lack if not _is_known(name, lock)]
    if unknown:
        faults = [
            f"--allow-missing {name}: neither a library nor a package that the project adds"
            for name in unknown
        ]
        raise ConfigError.of(
            faults, hint="name a library (libtbb.so.12), or a package of torchkiln.lock.json"
        )


def still_known(may_lack: Sequence[str], lock: ProjectLock) -> tuple[str, ...]:
    """The names in *may_lack* that are those of libraries or of packages of *lock*, sorted."""
    return tuple(sorted({name for name in may_lack if _is_known(name, lock)}))


def _is_known(name: str, lock: ProjectLock) -> bool:
    return _LIBRARY.fullmatch(name) is not None or any(wheel.name == name for wheel in lock.wheels)


def _allowed(fault: Fault, may_lack: Collection[str]) -> bool:
    return fault.package in may_lack or fault.library in may_lack


def _lines(faults: Sequence[Fault]) -> list[str]:
    more = [f"  and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
    return [*(f"  {fault.path} {fault.sentence}" for fault in faults[:_SHOWN]), *more]
