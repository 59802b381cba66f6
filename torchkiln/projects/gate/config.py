"""Decides what the configuration of a project's image may change in that of the parent image. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchkiln.errors import printable
from torchkiln.model.project import APP, LABEL, PARENT_LABEL
from torchkiln.projects.variables import variable_fault

_OWN = ("Env", "Cmd", "WorkingDir", "Labels")  # these have rules of their own; the other fields must be equal
_NAMED = ("org.opencontainers.image.title", "org.opencontainers.image.version", LABEL)
_UNTRUSTED = "torchkiln.untrusted"


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigRules:
    """The required values of the configuration."""

    name: str  # of the project
    parent: str  # TAG@DIGEST of the parent image
    has_source: bool  # the image has files in /app/src

    @property
    def path(self) -> str:
        """The required value of PYTHONPATH."""
        return f"/{APP}:/{APP}/src" if self.has_source else f"/{APP}"


def config_faults(config: Mapping[str, Any], below: Mapping[str, Any], rules: ConfigRules) -> Iterator[str]:
    """How *config* breaks the rules; *below* is the parent image's. Both are the whole JSON document."""
    for key in sorted((config.keys() | below.keys()) - {"config", "rootfs", "history"}):
        if config.get(key) != below.get(key):
            yield f"{key} is {_shown(config.get(key))}, not {_shown(below.get(key))}"
    own, theirs = config.get("config") or {}, below.get("config") or {}
    for key in sorted((own.keys() | theirs.keys()) - set(_OWN)):
        if own.get(key) != theirs.get(key):
            yield f"{key} is {_shown(own.get(key))}; the parent image has {_shown(theirs.get(key))}"
    if own.get("WorkingDir") != f"/{APP}":
        yield f"WorkingDir is {_shown(own.get('WorkingDir'))}, not /{APP}"
    yield from _labels(own.get("Labels") or {}, theirs.get("Labels") or {}, rules)
    yield from _env(own.get("Env") or [], theirs.get("Env") or [], rules)


def added_variables(config: Mapping[str, Any], below: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the variables that *config* adds to *below*, except PYTHONPATH (all projects set it)."""
    own, theirs = ((each.get("config") or {}).get("Env") or [] for each in (config, below))
    names = (line.partition("=")[0] for line in own if line not in theirs)
    return tuple(printable(name) for name in names if name != "PYTHONPATH")


def _labels(own: Mapping[str, str], theirs: Mapping[str, str], rules: ConfigRules) -> Iterator[str]:
    expected = {**theirs, **dict.fromkeys(_NAMED, rules.name), PARENT_LABEL: rules.parent}
    for name in sorted(own.keys() | expected.keys()):
        if own.get(name) == expected.get(name):
            continue
        if name == _UNTRUSTED and own.get(name) == "true":
            yield f"the label {name}: an index that the project's lock used is untrusted"
        else:
            yield f"the label {name} is {_shown(own.get(name))}, not {_shown(expected.get(name))}"


def _env(own: list[str], theirs: list[str], rules: ConfigRules) -> Iterator[str]:
    expected = dict(line.partition("=")[::2] for line in theirs) | {"PYTHONPATH": rules.path}
    seen = set[str]()
    for line in own:
        name, _, value = line.partition("=")
        if name in seen:
            yield f"Env has {name} twice"
        seen.add(name)
        if name in expected:
            if value != expected[name]:
                yield f"{name} is {_shown(value)}, not {expected[name]}"
        elif fault := variable_fault(name, value):
            yield f"Env has {name}: {fault}"
    yield from (f"Env lacks {name}" for name in expected if name not in seen)


def _shown(value: Any) -> str:
    return "absent" if value is None else printable(repr(value))[:200]
