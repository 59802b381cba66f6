"""Lists the requirements of chosen extras and dependency groups (PEP 735) of pyproject.toml. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from torchkiln.errors import ConfigError
from torchkiln.projects.choice import HINT, Choice, listed
from torchkiln.projects.pyproject_file import FILE, Pyproject

_DEPTH = 50  # levels of groups and extras that include each other
_MOST = 5_000  # requirements, each once with each marker
_LONGEST = 4_000  # characters of a requirement, and of a marker
_INCLUDE = "include-group"
_TABLES = {"extra": "project.optional-dependencies", "group": "dependency-groups"}


def optional_requirements(file: Pyproject, choice: Choice) -> list[tuple[str, str]]:
    """The requirements of *choice*, each with the string in *file* from which it comes.

    An extra of the project itself, `my-project[gpu]`, stands for the requirements of that extra.

    :raises ConfigError: a name is unknown, or a chosen list is invalid.
    """
    if not choice.any:
        return []
    walk = _Walk(file.name, {"extra": file.extras(), "group": file.groups()})
    if faults := choice.unknown(FILE, walk.lists["extra"], walk.lists["group"]):
        raise ConfigError.of(faults, hint=_hint(file, choice))
    for kind, names in (("extra", choice.extras), ("group", choice.groups)):
        for name in names:
            walk.add(kind, name, (), None)
    return walk.found


@dataclass(slots=True)
class _Walk:
    own: str  # the project's name; "" if it has none
    lists: Mapping[str, Mapping[str, Any]]  # kind -> name -> value
    found: list[tuple[str, str]] = field(default_factory=list)
    done: set[tuple[str, str, str]] = field(default_factory=set)  # kind, name and marker of each list
    values: int = 0

    def add(self, kind: str, name: str, above: tuple[tuple[str, str], ...], marker: Marker | None) -> None:
        """Add the requirements of the extra or group *name*, for environments with *marker*.

        :param above: the (kind, name) of the lists through which it is included, the outermost first.
        """
        if (kind, name) in above and kind == "extra":
            return  # its requirements are listed already, and for at least these environments
        if (kind, name) in above:
            names = [each for _, each in above[above.index((kind, name)) :]]
            raise _wrong(kind, names[0], f"a cycle of {_INCLUDE}: {' > '.join((*names, name))}")
        if (kind, name, str(marker)) in self.done:
            return
        self.done.add((kind, name, str(marker)))
        values = self.lists[kind][name]
        if not isinstance(values, list):
            raise _wrong(kind, name, "the value has the wrong type: it must be a list")
        self.values += len(values)
        if len(above) >= _DEPTH or self.values > _MOST or len(str(marker)) > _LONGEST:
            raise _wrong(kind, name, f"more than {_DEPTH} levels, or {_MOST} requirements")
        for value in values:
            self._value(value, kind, (*above, (kind, name)), marker)

    def _value(
        self, value: object, kind: str, above: tuple[tuple[str, str], ...], marker: Marker | None
    ) -> None:
        _, name = above[-1]
        if isinstance(value, str):
            self._requirement(value, above, marker)
            return
        included = value.get(_INCLUDE) if isinstance(value, dict) and len(value) == 1 else None
        if kind != "group" or not isinstance(included, str):
            table = f" or {{{_INCLUDE} = NAME}}" if kind == "group" else ""
            raise _wrong(kind, name, f"{str(value)[:100]}: not a valid requirement{table}")
        if (target := canonicalize_name(included)) not in self.lists["group"]:
            known = listed(self.lists["group"])
            raise _wrong(kind, name, f"{_INCLUDE} {included[:100]!r}: {FILE} has no such group{known}")
        self.add("group", target, above, marker)

    def _requirement(self, text: str, above: tuple[tuple[str, str], ...], marker: Marker | None) -> None:
        try:
            requirement = Requirement(text) if len(text) <= _LONGEST else None
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
            if extra not in self.lists["extra"]:
                raise _wrong(
                    *above[-1], f"{text[:100]}: {FILE} has no extra {extra}{listed(self.lists['extra'])}"
                )
            self.add("extra", extra, above, requirement.marker)


def _wrong(kind: str, name: str, why: str) -> ConfigError:
    return ConfigError(f"{FILE}: [{_TABLES[kind]}] {name}: {why}", hint=f"correct [{_TABLES[kind]}]")


def _hint(file: Pyproject, choice: Choice) -> str:
    if choice.extras and "optional-dependencies" in file.project.get("dynamic", ()):
        return f"write the extras into {FILE}: dynamic extras, which a build backend computes, are not read"
    return HINT
