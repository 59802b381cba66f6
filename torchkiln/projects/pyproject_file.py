"""Parses the parts of pyproject.toml that torchkiln uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.utils import canonicalize_name

from torchkiln.errors import ConfigError
from torchkiln.projects.choice import HOW_TO_NAME, is_name
from torchkiln.util.toml import toml_of

FILE = "pyproject.toml"
_KINDS = {"name": str, "requires-python": str, "dependencies": list, "dynamic": list}


@dataclass(frozen=True, kw_only=True, slots=True)
class Pyproject:
    """The contents of pyproject.toml; the default stands for a missing file.

    Extras and groups are checked only when some are chosen.
    """

    document: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""

    @property
    def project(self) -> Mapping[str, Any]:
        """[project]; empty if there is none."""
        table: Mapping[str, Any] = self.document.get("project", {})
        return table

    @property
    def name(self) -> str:
        """The normalized name in [project]; "" if there is none."""
        return canonicalize_name(self.project.get("name", ""))

    def extras(self) -> dict[str, Any]:
        """The values in [project.optional-dependencies], not checked, by normalized name.

        :raises ConfigError: the value is not a table, a key is not a valid name, or two keys have the same
            normalized name.
        """
        return _by_name(self.project.get("optional-dependencies", {}), "project.optional-dependencies")

    def groups(self) -> dict[str, Any]:
        """The values in [dependency-groups], not checked, by normalized name.

        :raises ConfigError: as `extras`.
        """
        return _by_name(self.document.get("dependency-groups", {}), "dependency-groups")


def parse_pyproject(text: bytes) -> Pyproject:
    """The file with the contents *text*.

    :raises ConfigError: *text* is not TOML, or [project] has values of the wrong type.
    """
    try:
        document = toml_of(text)
    except ValueError as error:
        raise ConfigError(f"{FILE}: {error}") from None
    table = document.get("project", {})
    if not isinstance(table, dict):
        raise ConfigError(f"{FILE}: [project] must be a table")
    wrong = [key for key, kind in _KINDS.items() if not isinstance(table.get(key, kind()), kind)]
    if wrong or not all(isinstance(text, str) for text in table.get("dependencies", ())):
        raise ConfigError(
            f"{FILE}: [project] {', '.join(wrong) or 'dependencies'}: the value has the wrong type"
        )
    return Pyproject(document=document, text=text.decode())


def _by_name(table: object, where: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise ConfigError(f"{FILE}: [{where}] must be a table", hint=f"write it as a table: [{where}]")
    found: dict[str, Any] = {}
    written: dict[str, str] = {}
    for name, value in table.items():
        if not is_name(name):
            raise ConfigError(f"{FILE}: [{where}]: {name[:100]!r} is not a valid name", hint=HOW_TO_NAME)
        key = canonicalize_name(name)
        if key in found:
            raise ConfigError(
                f"{FILE}: [{where}]: {written[key]!r} and {name!r} are the same name",
                hint="rename one of them",
            )
        found[key], written[key] = value, name
    return found
