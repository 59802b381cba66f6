"""Reads the requirements of a project, from the first of four files that its folder has.

The files are pylock.toml, uv.lock, pyproject.toml with [project] dependencies, and requirements.txt. No code
of the project is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from torchkiln.errors import ConfigError
from torchkiln.index.settings import redact_text
from torchkiln.projects import pylock
from torchkiln.projects.asked import Asked, Ignored, ProjectNeeds
from torchkiln.projects.choice import NO_CHOICE, Choice
from torchkiln.projects.elsewhere import served, settings_without_effect
from torchkiln.projects.exports import found_in
from torchkiln.projects.files import Lines, read_inside
from torchkiln.projects.fixed import comes_with_torch
from torchkiln.projects.pyproject import FILE, Pyproject, parse_pyproject, requirements_of
from torchkiln.projects.requirement import Requirements, read_requirements
from torchkiln.store.store import Store

REQUIREMENTS = "requirements.txt"


def read_project(
    folder: Path, environment: Mapping[str, str], store: Store, choice: Choice = NO_CHOICE
) -> ProjectNeeds:
    """What the project in *folder*, with the extras and groups of *choice*, requires in an image with
    *environment*.

    :param store: has a private folder for uv, which reads uv.lock.
    :raises ConfigError: none of the files exists, or the used one is invalid, lacks an extra or a group, or
        has requirements that cannot be locked; lists all faults with their lines.
    :raises Stale: uv.lock was made from another pyproject.toml.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such directory", hint="name the folder of the project")
    present = {name for name in (pylock.FILE, pylock.UV_LOCK, FILE, REQUIREMENTS) if _has(folder, name)}
    file = parse_pyproject(_read(folder, FILE)) if FILE in present else Pyproject()
    name = file.name(folder.resolve().name)
    constraints: tuple[Asked, ...] = ()
    ignored: tuple[Ignored, ...] = ()
    if pylock.FILE in present:
        # pylock.toml determines which extras and groups exist.
        known = choice.within(file.lists("extra"), file.lists("group")) if choice.any else choice
        named = {asked.name for asked in _own(file, known)}
        lock = _read(folder, pylock.FILE)
        source, (requirements, python) = pylock.FILE, pylock.packages_of(lock, named, environment, choice)
    elif pylock.UV_LOCK in present:
        if not file.project:
            raise ConfigError(
                f"{pylock.UV_LOCK}: there is no {FILE} with [project] beside it",
                hint=f"add the {FILE} from which uv made it",
            )
        source, own, python = pylock.UV_LOCK, _own(file, choice), file.requires_python
        requirements = pylock.packages_of_uv(_read(folder, pylock.UV_LOCK), name, own, choice, store)
    elif REQUIREMENTS in present and "dependencies" not in file.project:
        if choice.any:
            raise ConfigError(
                f"{choice.options}: {REQUIREMENTS} has no extras or groups",
                hint=f"write [project] dependencies into {FILE}, with the extras and groups; or choose none:"
                " --extra ''",
            )
        found = read_requirements(folder, REQUIREMENTS, name)
        source, requirements, python = REQUIREMENTS, tuple(found.requirements), file.requires_python
        constraints, ignored = tuple(found.constraints), tuple(found.ignored)
    elif (file.project and not file.is_dynamic) or (
        "dependencies" in file.project or (choice.groups and not file.project and file.lists("group"))
    ):
        source, requirements, python = FILE, _own(file, choice), file.requires_python
        _demand_followed(file, requirements)
    else:
        others = [*found_in(folder.resolve())]
        names = ", ".join(islice(dict.fromkeys(name for name, _ in others), 9))
        raise ConfigError(
            f"{folder}: no pylock.toml, uv.lock, pyproject.toml with [project] dependencies, or"
            f" requirements.txt{f'; it has {names}, which torchkiln does not read' if names else ''}",
            hint=others[0][1] if others else f"write the packages that the project needs into {REQUIREMENTS}",
        )
    return ProjectNeeds(
        name=name,
        source=source,
        requirements=requirements,
        constraints=constraints,
        ignored=(*ignored, *_places(file)),
        requires_python=python,
        is_lock=source in (pylock.FILE, pylock.UV_LOCK),
        choice=choice,
    )


def _demand_followed(file: Pyproject, required: Iterable[Asked]) -> None:
    """:raises ConfigError: settings in *file* choose other packages than this reader does; lists all."""
    names = {one.name for one in required if not comes_with_torch(one.name)}
    found, lines = Requirements(), Lines(FILE, file.text)
    for setting, why, advice in settings_without_effect(file.document, names):
        where = lines.quoted(setting.split()[-1]) if "://" in setting else FILE
        found.refuse(f"{where}: {redact_text(setting)[:200]}: {why}", advice)
    found.require_sound()


def _places(file: Pyproject) -> Iterator[Ignored]:
    """The settings of uv, Poetry and others that name PyTorch's index, or PyPI."""
    for words, where in Lines(FILE, file.text).strings():
        if "://" in words and (name := served(words)):
            yield Ignored(name=name, version=redact_text(words), where=where)


def _own(file: Pyproject, choice: Choice) -> tuple[Asked, ...]:
    """The requirements in pyproject.toml, with those of the extras and groups of *choice*.

    :raises ConfigError: an extra or a group is missing, or requirements are wrong or not supported; lists
        all.
    """
    found, lines = Requirements(), Lines(FILE, file.text)
    for requirement, words in requirements_of(file, choice):
        found.add(requirement, lines.quoted(words))
    found.require_sound()
    return tuple(found.requirements)


def _has(folder: Path, name: str) -> bool:
    return (folder / name).is_symlink() or (folder / name).exists()


def _read(folder: Path, name: str) -> bytes:
    try:
        return read_inside(folder, folder / name)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
