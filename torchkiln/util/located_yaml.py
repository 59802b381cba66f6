"""Parses YAML with the line of each value, so that schema violations name their line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from torchkiln.errors import ConfigError
from torchkiln.util.schema import Path, dotted, shown, violations

MAX_TEXT = 128 << 10  # characters; a matrix has 2,000, and each can need a kilobyte of memory
_DEPTH = 20  # levels; a matrix has four
_DIGITS = 80  # characters of a number
_LARGEST = 1 << 63  # larger numbers are read as text
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Forbidden by YAML; PyYAML's own check does not report the line.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Located:
    """A parsed file: its values, the line of each (from 1), and numbers as written."""

    name: str
    data: Any
    lines: Mapping[Path, int]
    written: Mapping[Path, str]

    def fault(self, path: Path, text: str) -> str:
        """*text* as ``file:line: path: text``."""
        known = next(path[:end] for end in range(len(path), -1, -1) if path[:end] in self.lines)
        where = dotted(path)
        return f"{self.name}:{self.lines[known]}: {where + ': ' if where else ''}{text}"


def parse(text: str, *, name: str) -> Located:
    """*text* as YAML without anchors, tags, merge keys and duplicate keys.

    :raises ConfigError: every fault with its line.
    """
    if len(text) > MAX_TEXT:
        raise ConfigError(f"{name}: longer than {MAX_TEXT} characters")
    if found := _CONTROL.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise ConfigError(f"{name}:{line}: not valid YAML: the control character {found[0]!a}")
    try:
        reject_aliases(text, name)
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        raise _fault(error, text, name) from None
    if root is None:
        raise ConfigError(f"{name}:1: the file is empty")
    reading = _Reading(name)
    data = reading.value(root, ())
    if reading.wrong:
        raise ConfigError.of(reading.wrong)
    return Located(name=name, data=data, lines=reading.lines, written=reading.written)


def _fault(error: yaml.YAMLError, text: str, name: str) -> ConfigError:
    if "maximum nesting depth" in str(error):  # PyYAML's scanner, since 6.0.4, may notice it first
        return _too_deep(name, 1)
    if isinstance(error, yaml.MarkedYAMLError):
        mark: Any = error.problem_mark or error.context_mark  # libyaml's marks have a class of their own
        line = mark.line + 1 if mark else 1
        rest = "".join(text.splitlines()[mark.line : line])[mark.column :] if mark else ""
        advice = "; indent with spaces, not with tabs" if rest.startswith("\t") else ""
        return ConfigError(f"{name}:{line}: not valid YAML: {error.problem or error.context}{advice}")
    return ConfigError(f"{name}:1: not valid YAML: {str(error).splitlines()[0]}")


def _too_deep(name: str, line: int) -> ConfigError:
    return ConfigError(f"{name}:{line}: nested deeper than {_DEPTH} levels")


def faults(located: Located, schema: Mapping[str, Any]) -> list[str]:
    """The first fifty violations of *schema* in *located*; empty if it is valid."""
    found = violations(located.data, schema, written=lambda at, it: located.written.get(at, shown(it)))
    return [located.fault(path, text) for path, text in found]


def reject_aliases(text: str, name: str) -> None:
    """Check *text* before it is composed: with aliases, a short file could expand and fill the memory.

    :raises ConfigError: it has aliases or anchors, or is nested too deep.
    :raises yaml.YAMLError: it is not YAML.
    """
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        start: Any = event.start_mark
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise ConfigError(
                f"{name}:{start.line + 1}: anchors and aliases (& and *) are not allowed; repeat the value"
            )
        if isinstance(event, (yaml.CollectionStartEvent, yaml.CollectionEndEvent)):
            depth += 1 if isinstance(event, yaml.CollectionStartEvent) else -1
            if depth > _DEPTH:
                raise _too_deep(name, start.line + 1)


class _Reading:
    """One pass over the nodes and its results."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.lines: dict[Path, int] = {}
        self.written: dict[Path, str] = {}
        self.wrong: list[str] = []

    def value(self, node: yaml.Node, path: Path) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if node.tag not in ("tag:yaml.org,2002:seq", "tag:yaml.org,2002:map"):
            self._refuse_tag(node)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, (*path, index)) for index, child in enumerate(node.value)]
        return self._mapping(node, path)

    def _mapping(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, child in node.value:
            at = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.wrong.append(f"{self._name}:{at}: a key must be a scalar")
                continue
            if key_node.tag == "tag:yaml.org,2002:merge":
                self.wrong.append(f"{self._name}:{at}: merge keys (<<) are not allowed; repeat the value")
                continue
            key = str(key_node.value)
            place: Path = (*path, key)
            if key in found:
                duplicate = f"{dotted(place)}: duplicate key, first on line {self.lines[place]}"
                self.wrong.append(f"{self._name}:{at}: {duplicate}")
                continue
            self.lines[place] = at
            found[key] = self.value(child, place)
        return found

    def _scalar(self, node: yaml.Node, path: Path) -> Any:
        text = str(node.value)
        kind = node.tag.rpartition(":")[2]
        try:
            if kind in ("int", "float") and "_" not in text and len(text) <= _DIGITS:
                number = int(text, 0) if kind == "int" else float(text)
                if abs(number) < _LARGEST:  # excludes infinity too
                    self.written[path] = text  # YAML reads 2.10 as the number 2.1
                    return number
        except ValueError:  # YAML's rare forms of numbers, 1_000 and 12:30 and 012, are read as text
            return text
        if kind == "bool":
            self.written[path] = text
            return text.lower() in ("yes", "true", "on")
        if kind == "null":
            return None
        if kind not in ("str", "timestamp", "int", "float", "value", "merge"):
            self._refuse_tag(node)
        return text

    def _refuse_tag(self, node: yaml.Node) -> None:
        line = node.start_mark.line + 1
        self.wrong.append(f"{self._name}:{line}: tags ({node.tag[:100]}) are not allowed")
