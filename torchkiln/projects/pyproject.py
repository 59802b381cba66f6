"""Reads the dependencies of pyproject.toml, and of uv.lock beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from torchkiln.errors import ConfigError, Stale
from torchkiln.projects.asked import Asked, ProjectNeeds
from torchkiln.projects.by_file import wheel_required
from torchkiln.projects.choice import NO_CHOICE, Choice
from torchkiln.projects.files import Lines
from torchkiln.projects.optional import optional_requirements
from torchkiln.projects.pyproject_file import FILE, Pyproject
from torchkiln.projects.requirements_file import RequirementLines, logical_lines
from torchkiln.util.toml import toml_of

LOCK = "uv.lock"
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def name_of(file: Pyproject, folder: str) -> str:
    """The name in [project] of *file*, or that of the *folder*, normalized.

    :raises ConfigError: neither can be the name of an image.
    """
    table = file.project
    name = canonicalize_name(table.get("name") or re.sub(r"[^A-Za-z0-9._-]+", "-", folder)).strip("-")
    if not _NAME.fullmatch(name) or len(name) > 128:
        where = f"{FILE}: [project] name" if "name" in table else "the folder's name"
        raise ConfigError(
            f"{where}: {table.get('name', folder)[:200]!r} cannot be the name of an image",
            hint=f'set a name of letters, digits and hyphens: [project] name = "my-project" in {FILE}',
        )
    return name


def needs_of_pyproject(file: Pyproject, name: str, choice: Choice = NO_CHOICE) -> ProjectNeeds:
    """The dependencies in [project], and those of the extras and groups of *choice*.

    :raises ConfigError: an extra or a group is missing, or requirements are wrong or not supported; lists
        all.
    """
    found, lines = RequirementLines(), Lines(FILE, file.text)
    for dependency in file.project.get("dependencies", ()):
        found.add(dependency, lines.quoted(dependency))
    for requirement, words in optional_requirements(file, choice):
        found.add(requirement, lines.quoted(words))
    found.require_sound()
    return ProjectNeeds(
        name=name,
        source=FILE,
        requirements=tuple(found.requirements),
        requires_python=requires_python(file),
        choice=choice,
    )


def needs_of_uv_lock(
    project: ProjectNeeds, lock: bytes, exported: Callable[[str, bytes], str]
) -> ProjectNeeds:
    """The packages that uv.lock pins for *project*, whose own dependencies and choice are known.

    :param exported: lists the packages of a lock that the project with this name needs.
    :raises ConfigError: the lock is invalid, or has packages that are not supported; lists all.
    :raises Stale: pyproject.toml has other dependencies than the lock.
    """
    try:
        document, lines = toml_of(lock), Lines(LOCK, lock.decode())
    except ValueError as error:
        raise ConfigError(f"{LOCK}: {error}", hint="recreate it: uv lock") from None
    manifest = document.get("manifest")
    members = manifest.get("members") if isinstance(manifest, dict) else None
    if isinstance(members, list) and len(members) > 1:
        raise ConfigError(
            f"{LOCK}: a workspace with {len(members)} members is not supported",
            hint="build wheels of the other members, put them on a package index, and lock the project alone",
        )
    _require_current(project, document)
    named = {asked.name for asked in project.requirements}
    found = RequirementLines()
    for _, line in logical_lines(exported(project.name, lock)):
        package = _package_of(line)
        where = lines.package(package)
        if line.startswith("-"):
            found.refuse(f"{where}: {line[:200]}: editable packages cannot be locked")
            continue
        found.add(line, where, by_name=canonicalize_name(package) in named)
    found.require_sound()
    return ProjectNeeds(
        name=project.name,
        source=LOCK,
        requirements=tuple(found.requirements),
        requires_python=project.requires_python,
        is_lock=True,
        choice=project.choice,
    )


def _package_of(line: str) -> str:
    """The package that *line* of uv's export requires."""
    text = line.removeprefix("-e ")
    with suppress(ValueError):
        if wheel := wheel_required(text.partition(" --hash")[0].strip()):
            return Requirement(wheel.text).name
    return re.split(r"[\s=@;\[]", text, maxsplit=1)[0]


def requires_python(file: Pyproject) -> str:
    """The versions of Python in [project] of *file*.

    :raises ConfigError: they are not a version specifier.
    """
    text: str = file.project.get("requires-python", "")
    try:
        return str(SpecifierSet(text))
    except InvalidSpecifier:
        raise ConfigError(f"{FILE}: requires-python: {text[:100]!r} is not a version specifier") from None


def _require_current(project: ProjectNeeds, document: Mapping[str, Any]) -> None:
    """:raises Stale: the lock was made from other dependencies than those of *project*."""
    packages = document.get("package")
    for package in packages if isinstance(packages, list) else ():
        if not isinstance(package, dict) or package.get("name") != project.name:
            continue
        metadata = package.get("metadata")
        listed = _listed(metadata, project.choice.groups) if isinstance(metadata, dict) else []
        locked = {form for entry in listed if isinstance(entry, dict) for form in _locked_forms(entry)}
        asked = {_form(one) for one in project.requirements}
        if missing := sorted(name for name, _, _ in asked - locked):
            raise Stale(
                f"{LOCK}: the lockfile needs to be updated: made from other dependencies than {FILE} has:"
                f" {', '.join(missing)}",
                hint="run: uv lock",
            )
        return


def _listed(metadata: Mapping[str, Any], groups: Iterable[str]) -> list[Any]:
    """The entries in *metadata* of uv.lock for dependencies, those of extras, and those of *groups*."""
    of_groups = metadata.get("requires-dev")
    by_name = of_groups if isinstance(of_groups, dict) else {}
    lists = (metadata.get("requires-dist"), *(by_name.get(name) for name in groups))
    return [entry for each in lists if isinstance(each, list) for entry in each]


def _form(asked: Asked) -> tuple[str, str, str]:
    """The package, its versions, and the revision of a repository."""
    revision = asked.repository.revision if asked.repository else ""
    return asked.name, str(asked.requirement.specifier), revision


def _locked_forms(entry: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The values of `_form` for an entry of uv.lock's requires-dist.

    An entry with a repository has two values: without it, because pyproject.toml can name the repository in
    [tool.uv.sources] instead of the requirement, and with it.
    """
    with suppress(InvalidSpecifier, ValueError):
        name = canonicalize_name(str(entry.get("name", "")))
        specifier = str(SpecifierSet(str(entry.get("specifier", ""))))
        yield name, specifier, ""
        if entry.get("git"):
            values = dict(parse_qsl(urlsplit(str(entry["git"])).query))
            revisions = (values[key] for key in ("rev", "tag", "branch") if key in values)
            yield name, specifier, next(revisions, "HEAD")
