"""Builds a wheel of a project's lock again, on a machine whose cache does not have it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torchkiln.engine.environment import Environment
from torchkiln.engine.fetched import fetched
from torchkiln.errors import BuildFailed
from torchkiln.index.settings import index_settings
from torchkiln.model.cell import PythonArchive, Source
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.model.progress import Reporting
from torchkiln.model.project import BuiltFrom, GitCommit, Origin
from torchkiln.projects.sources.repositories import Repositories
from torchkiln.projects.sources.sdist import SandboxedBuilder
from torchkiln.projects.sources.sdists import SourceCode
from torchkiln.vault.places import vaults_of
from torchkiln.vault.sources import digest_of_file, take


def rebuilt(
    wheel: LockedWheel,
    origin: Origin,
    cell: LockedCell,
    environment: Environment,
    locate: Callable[[PythonArchive], str],
) -> Path:
    """The path of *wheel* in the cache, built from the sdist and with the build requirements of *origin*.

    :param locate: the path or URL of the archive of the cell's standalone Python.
    :raises BuildFailed: the wheel cannot be built, or has other bytes than the locked wheel.
    """
    built = origin.built
    assert built is not None
    sdist = sdist_of(wheel, built)
    fetch_sdist(sdist, origin, environment)
    for file in built.requires:
        fetched(file, environment)
    code = SourceCode(archive=sdist, folder=(origin.git.subdirectory if origin.git else "") or ".")
    report = Reporting(say=environment.say, observer=environment.observer)
    builder = SandboxedBuilder(
        store=environment.store, environ=environment.environ, report=report, locate=locate
    )
    found = builder.again(code, cell, built.requires).wheel
    if found.sha256 != wheel.sha256:
        why = "" if built.reproducible else "; it was not reproducible when it was locked"
        raise BuildFailed(
            f"{built.sdist}: checksum mismatch: the wheel built now has sha256 {found.sha256}, the lock has"
            f" {wheel.sha256}{why}",
            hint="copy the wheel from the machine that locked it into the folder of the setting `wheels`, and"
            " lock again",
        )
    return environment.store.wheel(wheel)


def sdist_of(wheel: LockedWheel, built: BuiltFrom) -> LockedWheel:
    """The sdist from which *wheel* was built, as a file that `fetched` gets."""
    return LockedWheel(
        name=wheel.name,
        version=wheel.version,
        filename=built.sdist,
        sha256=built.sha256,
        size=built.size,
        index=Source.DEFAULT,
    )


def fetch_sdist(sdist: LockedWheel, origin: Origin, environment: Environment) -> Path:
    """The path of *sdist* in the cache, from the index, the repository of *origin*, or a vault.

    :raises BuildFailed: it cannot be had.
    """
    store = environment.store
    if origin.git and origin.built and not store.has_wheel(sdist):
        vaults = vaults_of(environment.environ)
        if not take(vaults, digest_of_file(sdist), sdist.size, store.wheel(sdist), store):
            _fetch_commit(origin.name, origin.git, origin.built, environment)
    return fetched(sdist, environment)


def _fetch_commit(name: str, commit: GitCommit, built: BuiltFrom, environment: Environment) -> None:
    """Put the archive of *commit*, from which the package *name* was built, into the cache.

    :raises BuildFailed: the commit cannot be fetched, or gives another archive.
    """
    repositories = Repositories(
        store=environment.store,
        settings=index_settings(environment.environ),
        environ=environment.environ,
        say=environment.say,
    )
    found = repositories.archive(name, commit).archive
    if (found.filename, found.sha256) != (built.sdist, built.sha256):
        raise BuildFailed(
            f"{built.sdist}: checksum mismatch: the commit gives sha256 {found.sha256}, the lock has"
            f" {built.sha256}",
            hint="lock the project again",
        )
