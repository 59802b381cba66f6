"""Parses the parts of pyproject.toml that torchkiln uses; also extras and dependency groups. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from torchkiln.errors import ConfigError
from torchkiln.projects.asked import LONGEST, MOST, TEXT
from torchkiln.projects.choice import HINT, HOW_TO_NAME, Choice, is_name, listed
from torchkiln.util.toml import toml_of

FILE = "pyproject.toml"
_KINDS = {"name": str, "requires-python": str, "dependencies": list, "dynamic": list}
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_DEPTH = 50  # levels of groups and extras that include each other
_INCLUDE = "include-group"
_TABLES = {"extra": "project.optional-dependencies", "group": "dependency-groups"}

Kind = Literal["extra", "group"]


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
    def is_dynamic(self) -> bool:
        """Whether the dependencies are dynamic, or only in [tool.poetry.dependencies]."""
        tools = self.document.get("tool")
        poetry = tools.get("poetry") if isinstance(tools, dict) else None
        of_poetry = poetry.get("dependencies") if isinstance(poetry, dict) else None
        others = isinstance(of_poetry, dict) and of_poetry.keys() - {"python"}
        return "dependencies" in self.project.get("dynamic", ()) or bool(others)

    @property
    def requires_python(self) -> str:
        """The versions of Python in [project].

        :raises ConfigError: they are not a version specifier.
        """
        text: str = self.project.get("requires-python", "")
        try:
            return str(SpecifierSet(text))
        except InvalidSpecifier:
            raise ConfigError(f"{FILE}: requires-python: {text[:100]!r} is not a version specifier") from None

    def name(self, folder: str) -> str:
        """The name in [project], or that of the *folder*, normalized.

        :raises ConfigError: neither can be the name of an image.
        """
        table = self.project
        name = canonicalize_name(table.get("name") or re.sub(r"[^A-Za-z0-9._-]+", "-", folder)).strip("-")
        if not _NAME.fullmatch(name) or len(name) > 128:
            where = f"{FILE}: [project] name" if "name" in table else "the folder's name"
            raise ConfigError(
                f"{where}: {table.get('name', folder)[:200]!r} cannot be the name of an image",
                hint=f'set a name of letters, digits and hyphens: [project] name = "my-project" in {FILE}',
            )
        return name

    def lists(self, kind: Kind) -> dict[str, Any]:
        """The values in [project.optional-dependencies] or [dependency-groups], not checked, by name.

        :raises ConfigError: the value is not a table, a key is not a valid name, or two keys have the same
            normalized name.
        """
        where = _TABLES[kind]
        table = (self.project if kind == "extra" else self.document).get(where.rpartition(".")[2], {})
        if not isinstance(table, dict):
            raise ConfigError(f"{FILE}: [{where}] must be a table", hint=f"write it as a table: [{where}]")
        written: dict[str, str] = {}
        for name in table:
            if not is_name(name):
                raise ConfigError(f"{FILE}: [{where}]: {name[:100]!r} is not a valid name", hint=HOW_TO_NAME)
            if (other := written.setdefault(canonicalize_name(name), name)) != name:
                raise ConfigError(
                    f"{FILE}: [{where}]: {other!r} and {name!r} are the same name", hint="rename one of them"
                )
        return {key: table[name] for key, name in written.items()}


def parse_pyproject(text: bytes) -> Pyproject:
    """The file with the contents *text*.

    :raises ConfigError: *text* is not TOML, or [project] has values of the wrong type.
    """
    try:
        document = toml_of(text)
    except ValueError as error:
        raise ConfigError(f"{FILE}: {error}", hint=f"correct {FILE}") from None
    table = document.get("project", {})
    if not isinstance(table, dict):
        raise ConfigError(f"{FILE}: [project] must be a table")
    wrong = [key for key, kind in _KINDS.items() if not isinstance(table.get(key, kind()), kind)]
    if wrong or not all(isinstance(text, str) for text in table.get("dependencies", ())):
        raise ConfigError(
            f"{FILE}: [project] {', '.join(wrong) or 'dependencies'}: the value has the wrong type"
        )
    return Pyproject(document=document, text=text.decode())


def requirements_of(file: Pyproject, choice: Choice) -> Iterator[tuple[str, str]]:
    """The dependencies of [project], and those of the extras and groups of *choice*.

    Each comes with the string in *file* that it is made from. An extra of the project itself,
    `my-project[gpu]`, stands for the requirements of that extra.

    :raises ConfigError: a name is unknown, or a chosen list is invalid.
    """
    yield from ((text, text) for text in file.project.get("dependencies", ()))
    if not choice.any:
        return
    walk = _Walk(canonicalize_name(file.project.get("name", "")), file.lists("extra"), file.lists("group"))
    if faults := choice.unknown(FILE, walk.extra, walk.group):
        dynamic = choice.extras and "optional-dependencies" in file.project.get("dynamic", ())
        computed = (
            f"write the extras into {FILE}: dynamic extras, which a build backend computes, are not read"
        )
        raise ConfigError.of(faults, hint=computed if dynamic else HINT)
    for name in choice.extras:
        walk.add("extra", name, (), None)
    for name in choice.groups:
        walk.add("group", name, (), None)
    yield from walk.found


@dataclass(slots=True)
class _Walk:
    """Collects the requirements of extras and groups that include each other."""

    own: str  # the project's name; "" if it has none
    extra: Mapping[str, Any]  # name -> value
    group: Mapping[str, Any]
    found: list[tuple[str, str]] = field(default_factory=list)
    done: set[tuple[str, str, str]] = field(default_factory=set)  # kind, name and marker of each list
    values: int = 0
    text: int = 0

    def add(self, kind: Kind, name: str, above: tuple[tuple[Kind, str], ...], marker: Marker | None) -> None:
        """Add the requirements of the extra or group *name*, for environments with *marker*.

        :param above: the (kind, name) of the lists through which it is included, the outermost first.
        """
        if (kind, name) in above and kind == "group":
            names = [each for _, each in above[above.index((kind, name)) :]]
            raise _wrong(kind, names[0], f"a cycle of {_INCLUDE}: {' > '.join((*names, name))}")
        # The requirements of an extra in a cycle are listed already, and for at least these environments.
        if (kind, name) in above or (kind, name, str(marker)) in self.done:
            return
        self.done.add((kind, name, str(marker)))
        values = (self.extra if kind == "extra" else self.group)[name]
        if not isinstance(values, list):
            raise _wrong(kind, name, "the value has the wrong type: it must be a list")
        self.values += len(values)
        self.text += sum(len(str(value)) + len(str(marker)) for value in values)
        if len(above) >= _DEPTH or self.values > MOST or self.text > TEXT or len(str(marker)) > LONGEST:
            raise _wrong(kind, name, f"more than {_DEPTH} levels, {MOST} requirements or {TEXT} characters")
        above = (*above, (kind, name))
        for value in values:
            if isinstance(value, str):
                self._requirement(value, above, marker)
                continue
            included = value.get(_INCLUDE) if isinstance(value, dict) and len(value) == 1 else None
            if kind == "extra" or not isinstance(included, str):
                table = f" or {{{_INCLUDE} = NAME}}" if kind == "group" else ""
                raise _wrong(kind, name, f"{str(value)[:100]}: not a valid requirement{table}")
            if (target := canonicalize_name(included)) not in self.group:
                why = f"{_INCLUDE} {included[:100]!r}: {FILE} has no such group{listed(self.group)}"
                raise _wrong(kind, name, why)
            self.add("group", target, above, marker)

    def _requirement(self, text: str, above: tuple[tuple[Kind, str], ...], marker: Marker | None) -> None:
        try:
            requirement = Requirement(text) if len(text) <= LONGEST else None
        except InvalidRequirement:
            requirement = None
        if requirement is None:
            self.found.append((text, text))  # the reader of the requirement reports the error
            return
        if marker is not None:
            own = f" and ({requirement.marker})" if requirement.marker else ""
            requirement.marker = Marker(f"({marker}){own}")
        if canonicalize_name(requirement.name) != self.own:
            self.found.append((str(requirement) if marker is not None else text, text))
            return
        for extra in sorted(map(canonicalize_name, requirement.extras)):
            if extra not in self.extra:
                raise _wrong(*above[-1], f"{text[:100]}: {FILE} has no extra {extra}{listed(self.extra)}")
            self.add("extra", extra, above, requirement.marker)


def _wrong(kind: Kind, name: str, why: str) -> ConfigError:
    return ConfigError(f"{FILE}: [{_TABLES[kind]}] {name}: {why}", hint=f"correct [{_TABLES[kind]}]")
