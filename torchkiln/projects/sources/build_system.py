"""Reads the table [build-system] of an sdist's pyproject.toml, which is not trusted (PEP 517, 518). Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement

from torchkiln.util.toml import toml_of

_MOST = 100  # requirements
_LONGEST = 500  # characters of a requirement
_BACKEND = re.compile(r"[A-Za-z_][\w.]{0,199}(:[A-Za-z_][\w.]{0,199})?", re.ASCII)
_PART = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildSystem:
    """The build backend of an sdist and its requirements; the defaults apply if it has no pyproject.toml."""

    requires: tuple[str, ...] = ("setuptools>=40.8.0",)  # PEP 508
    backend: str = "setuptools.build_meta:__legacy__"
    path: tuple[str, ...] = ()  # backend-path: folders of the sdist from which the backend is imported


def build_system(text: bytes) -> BuildSystem:
    """The build system in *text*, a pyproject.toml; an empty *text* stands for a missing file.

    :raises ValueError: it is invalid.
    """
    table = toml_of(text).get("build-system")
    if table is None:
        return BuildSystem()
    if not isinstance(table, dict):
        raise ValueError("[build-system] is not a table")
    requires, path = table.get("requires", []), table.get("backend-path", [])
    backend = table.get("build-backend", BuildSystem().backend)
    for key, value in (("requires", requires), ("backend-path", path)):
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ValueError(f"[build-system] {key} is not a list of strings")
    if not isinstance(backend, str) or not _BACKEND.fullmatch(backend):
        raise ValueError("[build-system] build-backend is not the name of a module")
    if any(not _PART.fullmatch(part) or ".." in part.split("/") for part in path if part != "."):
        raise ValueError("[build-system] backend-path is not a relative path inside the sdist")
    return BuildSystem(requires=build_requirements(requires), backend=backend, path=tuple(path))


def build_requirements(texts: object) -> tuple[str, ...]:
    """The requirements in *texts* (PEP 508), without duplicates.

    :raises ValueError: *texts* is not a list or too long, or a requirement is invalid or has a URL.
    """
    if not isinstance(texts, list):
        raise ValueError("its build requirements are not a list")
    if len(texts) > _MOST:
        raise ValueError(f"its build requires more than {_MOST} packages")
    found = []
    for text in texts:
        shown = str(text)[:100]
        try:
            if not isinstance(text, str) or len(text) > _LONGEST:
                raise InvalidRequirement
            requirement = Requirement(text)
        except InvalidRequirement:
            raise ValueError(f"its build requires {shown!r}, which is not a valid requirement") from None
        if requirement.url:
            raise ValueError(f"its build requires {requirement.name} by a direct URL")
        found.append(str(requirement))
    return tuple(dict.fromkeys(found))
