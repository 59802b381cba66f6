"""Reads a project for a build: its code, its lock, and the lock of the cell on whose image it is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.build.project import ProjectSource
from torchkiln.errors import Stale
from torchkiln.lock.folder import LockFolder
from torchkiln.lock.lock import how_to_lock
from torchkiln.model.progress import UNREPORTED, Reporting
from torchkiln.model.project import ProjectLock
from torchkiln.project.code import read_code
from torchkiln.project.file import FILE, save_project
from torchkiln.project.ready import ProjectRequest, fresh_parent, needs_of, ready_project
from torchkiln.project.settings import read_settings
from torchkiln.store.store import Store

if TYPE_CHECKING:
    from torchkiln.project.lock import LockedProject


def source_of(
    request: ProjectRequest,
    locks: LockFolder,
    store: Store,
    *,
    environ: Mapping[str, str],
    made: Callable[[LockedProject, Path], None] | None,
    report: Reporting = UNREPORTED,
) -> ProjectSource:
    """The project of *request*, whose locks are fresh; its own lock is made and written if there is none.

    :param made: receives a lock that was made, and its path; None: none is made.
    :param report: gets the steps in which a lock's OS packages are installed.
    :raises ConfigError: a file of the project is wrong, or its code cannot be in an image.
    :raises Stale: a lock is outdated, or there is none and none is made.
    :raises Unresolvable: its requirements conflict with the image.
    """

    def lock() -> ProjectLock:
        if made is None:
            raise Stale(
                f"{request.folder / FILE}: no such file: the project is not locked",
                hint=f"run: {how_to_lock(request.cell)} --project {request.folder}",
            )
        from torchkiln.build.sdist import SandboxedBuilder  # both load slowly
        from torchkiln.project.session import lock_folder

        needs = needs_of(
            request.folder, fresh_parent(locks, request.cell, environ), store, request.chosen(None)
        )
        required = (one.path for one in needs.requirements if one.path)
        # Its faults are reported before a lock is made.
        read_code(request.folder, without=(*filter(None, (settings.wheels,)), *required))
        builder = SandboxedBuilder(store=store, environ=environ, report=report)
        found = lock_folder(request, locks, store, environ=environ, builder=builder, report=report)
        made(found, save_project(request.folder, found.lock))
        return found.lock

    settings = read_settings(request.folder)  # before a lock is made, too
    locked, cell = ready_project(request, locks, store, environ=environ, lock=lock)
    # The wheels are installed: they are not copied as code, too.
    own = (settings.wheels, *(origin.path for origin in locked.origins))
    code = read_code(request.folder, without=tuple(filter(None, own)))
    return ProjectSource(cell=cell, lock=locked, code=code, folder=request.folder, settings=settings)
