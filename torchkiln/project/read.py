"""Reads what a project's folder requires, from the first of four files that it has.

They are pylock.toml, uv.lock, [project] dependencies of pyproject.toml, and requirements.txt. Nothing of the
project is run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torchkiln.errors import ConfigError
from torchkiln.project import pylock, pyproject
from torchkiln.project.asked import ProjectNeeds
from torchkiln.project.files import read_inside
from torchkiln.project.requirements_file import read_requirements

REQUIREMENTS = "requirements.txt"

#: Lists the packages of a uv.lock that the project with this name needs: see `index.uv_lock.exported`.
Export = Callable[[str, bytes], str]


def read_project(folder: Path, environment: Mapping[str, str], exported: Export) -> ProjectNeeds:
    """What the project in *folder* requires in an image with *environment*.

    :raises ConfigError: there is none of the files, or the one that is used is wrong or has requirements that
        cannot be locked; lists all faults with their lines.
    :raises Stale: uv.lock was made from another pyproject.toml.
    """
    demand_folder(folder)
    table, text = _pyproject(folder)
    name = pyproject.name_of(table, folder.resolve().name)
    if _has(folder, pylock.FILE):
        own = pyproject.needs_of_pyproject(table, text, name).requirements
        named = frozenset(asked.name for asked in own)
        return pylock.needs_of_pylock(_read(folder, pylock.FILE), name, named, environment)
    if _has(folder, pyproject.LOCK):
        if not table:
            raise ConfigError(
                f"{pyproject.LOCK}: there is no {pyproject.FILE} with [project] beside it",
                hint=f"add the {pyproject.FILE} from which uv made it",
            )
        own_needs = pyproject.needs_of_pyproject(table, text, name)
        return pyproject.needs_of_uv_lock(own_needs, _read(folder, pyproject.LOCK), exported)
    if pyproject.has_dependencies(table):
        return pyproject.needs_of_pyproject(table, text, name)
    if _has(folder, REQUIREMENTS):
        found = read_requirements(folder, REQUIREMENTS)
        return ProjectNeeds(
            name=name,
            source=REQUIREMENTS,
            requirements=tuple(found.requirements),
            constraints=tuple(found.constraints),
            requires_python=pyproject.requires_python(table),
        )
    if table and "dependencies" not in table.get("dynamic", ()):
        return pyproject.needs_of_pyproject(table, text, name)
    raise ConfigError(
        f"{folder}: none of pylock.toml, uv.lock, pyproject.toml with [project] dependencies, and"
        " requirements.txt",
        hint="write the packages that the project needs into requirements.txt",
    )


def demand_folder(folder: Path) -> None:
    """:raises ConfigError: *folder* does not exist."""
    if not folder.is_dir():
        raise ConfigError(f"--project {folder}: not a folder", hint="name the folder of the project")


def _pyproject(folder: Path) -> tuple[Mapping[str, Any], str]:
    """[project] of pyproject.toml, and the file's text; both empty if there is none."""
    if not _has(folder, pyproject.FILE):
        return {}, ""
    data = _read(folder, pyproject.FILE)
    return pyproject.project_table(data), data.decode()


def _has(folder: Path, name: str) -> bool:
    return (folder / name).is_symlink() or (folder / name).exists()


def _read(folder: Path, name: str) -> bytes:
    try:
        return read_inside(folder, folder / name)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
