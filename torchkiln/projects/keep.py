"""Keeps the files of a project's lock in a vault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from torchkiln.engine.environment import Environment
from torchkiln.engine.keep import (
    PARENT,
    PROJECT,
    PROJECT_TYPE,
    Kept,
    KeptFile,
    artefact_files,
    vault_tag,
    wheel_file,
    write_lock,
)
from torchkiln.model.cell import PythonArchive
from torchkiln.model.project import ProjectLock
from torchkiln.oci.image import digest_of
from torchkiln.projects.build import ProjectSource, with_project_wheels
from torchkiln.projects.file import to_json
from torchkiln.projects.sources.repositories import fetch_sdist, sdist_of
from torchkiln.vault.places import Vault

_NAME = 100  # characters of a project's name in a tag, which has at most 128


def project_tag(lock: ProjectLock) -> str:
    """The tag of a project's lock in a vault."""
    return f"{lock.name[:_NAME]}-{digest_of(to_json(lock)).removeprefix('sha256:')[:12]}"


def keep_project(
    source: ProjectSource, vault: Vault, environment: Environment, locate: Callable[[PythonArchive], str]
) -> Kept:
    """Copy the files that the project of *source* adds to its cell to *vault*, as `keep` does.

    :param locate: as in `with_project_wheels`.
    :raises BuildFailed: as `keep` does, or a wheel cannot be built again.
    """
    lock, files = source.lock, _files(source, environment, locate)
    about = {PROJECT: lock.name, PARENT: vault_tag(source.cell)}
    return write_lock(project_tag(lock), PROJECT_TYPE, to_json(lock), files, vault, environment.store, about)


def _files(
    source: ProjectSource, environment: Environment, locate: Callable[[PythonArchive], str]
) -> Iterator[KeptFile]:
    lock, cell = source.lock, source.cell
    own = with_project_wheels(source, cell, environment, locate)
    wheels = {wheel.name: wheel for wheel in lock.wheels}
    for wheel in wheels.values():
        yield wheel_file(wheel, own)
    for origin in lock.origins:
        if origin.built:
            sdist = sdist_of(wheels[origin.name], origin.built)
            get = partial(fetch_sdist, sdist, origin, environment)
            yield replace(wheel_file(sdist, environment), fetch=lambda _, get=get: get())  # type: ignore[misc]
            for required in origin.built.requires:
                yield wheel_file(required, environment)
    if lock.apt:
        yield from artefact_files(lock.apt, cell.base, environment, source.folder)
