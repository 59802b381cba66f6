"""Reads the requirements of a project, from the first of four files that its folder has.

The files are pylock.toml, uv.lock, pyproject.toml with [project] dependencies, and requirements.txt. No code
of the project is run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torchkiln.errors import ConfigError
from torchkiln.projects import pylock, pyproject
from torchkiln.projects.asked import ProjectNeeds
from torchkiln.projects.choice import NO_CHOICE, Choice
from torchkiln.projects.files import read_inside
from torchkiln.projects.pyproject_file import FILE, Pyproject, parse_pyproject
from torchkiln.projects.requirements_file import read_requirements

REQUIREMENTS = "requirements.txt"

#: Lists the packages of a uv.lock that the project with this name needs: see `index.uv_lock.exported`.
Export = Callable[[str, bytes], str]


def read_project(
    folder: Path, environment: Mapping[str, str], exported: Export, choice: Choice = NO_CHOICE
) -> ProjectNeeds:
    """What the project in *folder*, with the extras and groups of *choice*, requires in an image with
    *environment*.

    :raises ConfigError: none of the files exists, or the used one is invalid, lacks an extra or a group, or
        has requirements that cannot be locked; lists all faults with their lines.
    :raises Stale: uv.lock was made from another pyproject.toml.
    """
    demand_folder(folder)
    file = _pyproject(folder)
    name = pyproject.name_of(file, folder.resolve().name)
    if _has(folder, pylock.FILE):
        # pylock.toml determines which extras and groups exist.
        there = choice.within(file.extras(), file.groups()) if choice.any else choice
        own = pyproject.needs_of_pyproject(file, name, there).requirements
        named = frozenset(asked.name for asked in own)
        return pylock.needs_of_pylock(_read(folder, pylock.FILE), name, named, environment, choice)
    if _has(folder, pyproject.LOCK):
        if not file.project:
            raise ConfigError(
                f"{pyproject.LOCK}: there is no {FILE} with [project] beside it",
                hint=f"add the {FILE} from which uv made it",
            )
        own_needs = pyproject.needs_of_pyproject(file, name, choice)
        return pyproject.needs_of_uv_lock(own_needs, _read(folder, pyproject.LOCK), exported)
    if "dependencies" in file.project:
        return pyproject.needs_of_pyproject(file, name, choice)
    if _has(folder, REQUIREMENTS):
        if choice.any:
            raise ConfigError(
                f"{choice.options}: {REQUIREMENTS} has no extras or groups",
                hint=f"write [project] dependencies into {FILE}, with the extras and groups; or choose none:"
                " --extra ''",
            )
        found = read_requirements(folder, REQUIREMENTS)
        return ProjectNeeds(
            name=name,
            source=REQUIREMENTS,
            requirements=tuple(found.requirements),
            constraints=tuple(found.constraints),
            requires_python=pyproject.requires_python(file),
        )
    is_static = file.project and "dependencies" not in file.project.get("dynamic", ())
    if is_static or (choice.groups and file.groups() and not file.project):
        return pyproject.needs_of_pyproject(file, name, choice)
    raise ConfigError(
        f"{folder}: no pylock.toml, uv.lock, pyproject.toml with [project] dependencies, or requirements.txt",
        hint="write the packages that the project needs into requirements.txt",
    )


def demand_folder(folder: Path) -> None:
    """:raises ConfigError: *folder* does not exist."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such directory", hint="name the folder of the project")


def _pyproject(folder: Path) -> Pyproject:
    """pyproject.toml; empty if there is none."""
    return parse_pyproject(_read(folder, FILE)) if _has(folder, FILE) else Pyproject()


def _has(folder: Path, name: str) -> bool:
    return (folder / name).is_symlink() or (folder / name).exists()


def _read(folder: Path, name: str) -> bytes:
    try:
        return read_inside(folder, folder / name)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
