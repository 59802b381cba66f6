"""Provides the locks for the image of a project: the project's lock, and that of its cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.utils import canonicalize_name

from torchkiln.locks.folder import LockFolder
from torchkiln.locks.freshness import require_fresh
from torchkiln.model.cell import Cell
from torchkiln.model.lock import LockedCell
from torchkiln.model.project import ProjectLock
from torchkiln.projects.asked import ProjectNeeds, environment_of
from torchkiln.projects.choice import NO_CHOICE, Choice, choice_of
from torchkiln.projects.file import load_project
from torchkiln.projects.freshness import require_fresh_project
from torchkiln.projects.own_wheels import with_own_wheels
from torchkiln.projects.read import read_project
from torchkiln.projects.settings import read_settings
from torchkiln.store.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectRequest:
    """The project in `folder` on the image of `cell`; `as_of` and `upgrade` as in `LockRequest`.

    `choice`: the extras and groups; `may_lack`: names of libraries that may be missing, and of packages whose
    libraries are not checked. None: the values of the project's lock.
    """

    folder: Path
    cell: Cell
    choice: Choice | None = None
    as_of: str | None = None
    upgrade: tuple[str, ...] = ()
    may_lack: tuple[str, ...] | None = None

    def chosen(self, lock: ProjectLock | None) -> Choice:
        """`choice`; if that is None, the extras and groups of *lock*, the project's present lock."""
        if self.choice is None:
            return choice_of(lock.extras, lock.groups) if lock else NO_CHOICE
        return self.choice


def ready_project(
    request: ProjectRequest,
    locks: LockFolder,
    store: Store,
    *,
    environ: Mapping[str, str],
    lock: Callable[[LockedCell], ProjectLock],
) -> tuple[ProjectLock, LockedCell]:
    """The lock of the project and that of its cell; both are fresh.

    :param lock: makes the project's lock for the cell's lock; called if the project has none.
    :raises ConfigError: the project's files are invalid.
    :raises Stale: a lock is outdated.
    """
    parent, present = fresh_parent(locks, request.cell, environ), load_project(request.folder)
    if present is None:
        return lock(parent), parent
    needs = needs_of(request.folder, parent, store, request.chosen(present))
    require_fresh_project(request.folder, present, needs, parent)
    return present, parent


def needs_of(folder: Path, parent: LockedCell, store: Store, choice: Choice = NO_CHOICE) -> ProjectNeeds:
    """What the project in *folder* requires in the image of *parent*, with the extras and groups of *choice*.

    :raises ConfigError: a file is invalid, lacks an extra or a group, or has requirements that cannot be
        locked; lists all faults.
    :raises Stale: uv.lock was made from another pyproject.toml.
    """
    needs = read_project(folder, environment_of(parent.python.version), store, choice)
    settings = read_settings(folder)
    build = tuple(sorted({canonicalize_name(name) for name in settings.build}))
    needs = replace(needs, apt=tuple(sorted(settings.apt)), build=build)
    return with_own_wheels(needs, folder, settings.wheels, store)


def fresh_parent(locks: LockFolder, cell: Cell, environ: Mapping[str, str]) -> LockedCell:
    """The lock of *cell*, made from the present matrix and facts.

    :raises Unresolvable: the cell is unavailable, or *environ* does not set the index that it needs.
    :raises Stale: the lock is missing, invalid, or made from another matrix or other facts.
    """
    locked = locks.load(cell)
    if not locked.by_record:
        return locks.fresh(cell, environ)
    require_fresh(locked, locks.resolution(cell), locks.bound)
    return locked
