"""Reads a project: its settings and requirements, its lock and that of its cell, which must be fresh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.utils import canonicalize_name

from torchkiln.errors import ConfigError, Stale
from torchkiln.locks.folder import LockFolder
from torchkiln.locks.freshness import require_fresh
from torchkiln.locks.lock import how_to_lock
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.tags import aliases_for, misfit
from torchkiln.model.cell import Cell
from torchkiln.model.lock import LockedCell
from torchkiln.model.platform import DEFAULT_PLATFORM
from torchkiln.model.project import ProjectLock
from torchkiln.projects.asked import ProjectNeeds, environment_of
from torchkiln.projects.choice import NO_CHOICE, Choice, choice_of
from torchkiln.projects.file import FILE, load_project
from torchkiln.projects.freshness import outdated
from torchkiln.projects.own_wheels import with_own_wheels
from torchkiln.projects.read import read_project
from torchkiln.projects.settings import NO_SETTINGS, ProjectSettings, read_settings
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
        """The extras and groups to install: `choice`; if it is None, those of *lock*, the current lock."""
        if self.choice is None:
            return choice_of(lock.extras, lock.groups) if lock else NO_CHOICE
        return self.choice


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedFolder:
    """A project with its lock, and the lock of the cell on whose image it is built."""

    folder: Path
    cell: LockedCell
    lock: ProjectLock
    needs: ProjectNeeds
    settings: ProjectSettings = NO_SETTINGS


def locked_folder(
    request: ProjectRequest, locks: LockFolder, store: Store, environ: Mapping[str, str]
) -> LockedFolder:
    """The project of *request*; its lock and that of its cell are fresh.

    :raises ConfigError: the project's files are invalid.
    :raises Stale: a lock is missing or outdated.
    """
    folder, lock = request.folder, load_project(request.folder)
    parent = fresh_parent(locks, request.cell, environ)
    if lock is None:
        raise Stale(
            f"{folder / FILE}: no such file: the project is not locked",
            hint=f"run: {how_to_lock(request.cell, project=folder)}",
        )
    needs = needs_of(folder, parent, store, request.chosen(lock))
    if why := outdated(lock, needs, parent):
        options = f" {needs.choice.options}" if choice_of(lock.extras, lock.groups) != needs.choice else ""
        raise Stale(f"{folder / FILE}: {why}", hint=f"run: torchkiln project lock {folder}{options}")
    return LockedFolder(folder=folder, cell=parent, lock=lock, needs=needs, settings=read_settings(folder))


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

    :raises ConfigError: the cell is for another platform.
    :raises Unresolvable: the cell is unavailable, or *environ* does not set the index that it needs.
    :raises Stale: the lock is missing, invalid, or made from another matrix or other facts.
    """
    if cell.platform != DEFAULT_PLATFORM:
        raise ConfigError(f"projects on images for {cell.platform} are not supported")
    locked = locks.load(cell)
    if not locked.by_record:
        return locks.fresh(cell, environ)
    require_fresh(locked, locks.resolution(cell), locks.bound)
    return locked


def demand_own_name(name: str, tag: str, matrix: Matrix) -> None:
    """Check that the *name* of a project on the image *tag* is not the name of another image.

    :raises ConfigError: *name* is the name of another image.
    """
    own = name == tag or name in aliases_for(tag, matrix)
    if why := f"it is a tag of {tag}" if own else misfit(name, tag, matrix):
        raise ConfigError(
            f"{name}: not a name for the project's image: {why}",
            hint="set another name in pyproject.toml, under [project]",
        )
