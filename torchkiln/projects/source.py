"""Reads a project for a build: its code, its lock, and the lock of the cell on whose image it is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.base.remake import APT_EFFECTS, committed_effects, learn
from torchkiln.errors import Stale
from torchkiln.locks.folder import LockFolder
from torchkiln.locks.lock import how_to_lock
from torchkiln.model.lock import LockedCell
from torchkiln.model.progress import UNREPORTED, Reporting
from torchkiln.model.project import ProjectLock
from torchkiln.projects.build import ProjectSource
from torchkiln.projects.code import ProjectCode, read_code
from torchkiln.projects.file import FILE
from torchkiln.projects.ready import ProjectRequest, needs_of, ready_project
from torchkiln.projects.settings import read_settings
from torchkiln.store.store import Store

if TYPE_CHECKING:
    from torchkiln.projects.lock import LockedProject


def source_of(
    request: ProjectRequest,
    locks: LockFolder,
    store: Store,
    *,
    environ: Mapping[str, str],
    made: Callable[[LockedProject, Path], None] | None,
    report: Reporting = UNREPORTED,
) -> ProjectSource:
    """The project of *request*, whose locks are fresh; the project's lock is made if there is none.

    :param made: receives a new lock and its path; None: no lock is made.
    :param report: gets the steps in which a lock's OS packages are installed.
    :raises ConfigError: a file of the project is invalid, or its code cannot be in an image.
    :raises Stale: a lock is outdated, or there is no lock and *made* is None.
    :raises Unresolvable: the project's requirements conflict with the image.
    """

    settings = read_settings(request.folder)  # its faults are reported before a lock is made, too

    def code(wheels: Iterable[str]) -> ProjectCode:
        """The code without *wheels*, which are installed, the folder of the setting `wheels`, and effects."""
        without = (settings.wheels, APT_EFFECTS, *wheels)
        return read_code(request.folder, without=tuple(filter(None, without)))

    def lock(parent: LockedCell) -> ProjectLock:
        if made is None:
            raise Stale(
                f"{request.folder / FILE}: no such file: the project is not locked",
                hint=f"run: {how_to_lock(request.cell, project=request.folder)}",
            )
        from torchkiln.projects.apt.wanted_packages import save_locked
        from torchkiln.projects.locking import lock_folder
        from torchkiln.projects.sources.sdist import SandboxedBuilder  # these load slowly

        needs = needs_of(request.folder, parent, store, request.chosen(None))
        code(one.path for one in needs.requirements)  # its faults are reported before a lock is made
        builder = SandboxedBuilder(store=store, environ=environ, report=report, locate=locks.matrix.locate)
        found = lock_folder(request, locks, store, environ=environ, builder=builder, report=report)
        made(found, save_locked(request.folder, found.lock, store))
        return found.lock

    locked, cell = ready_project(request, locks, store, environ=environ, lock=lock)
    if locked.apt:
        learn(request.folder, locked.apt, store)
        effects = request.folder / APT_EFFECTS
        if effects.exists() and not committed_effects(request.folder, locked.apt):
            report.say(f"warning: {effects} was made for another lock of the project, and is not used")
    return ProjectSource(
        cell=cell,
        lock=locked,
        code=code(origin.path for origin in locked.origins),
        folder=request.folder,
        settings=settings,
    )
