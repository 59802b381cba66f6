"""YAML text -> plain values that know their lines, and every fault against a schema with its place.

The check reads the part of JSON Schema that our schemas use. The jsonschema package would do, but it
takes 0.3 s to import, which a build that changes nothing does not have; the tests hold both together.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from torchkiln.errors import ConfigError

Path = tuple[str | int, ...]

#: What `faults` understands; a test keeps our schemas to it.
KEYWORDS = frozenset(
    ["$schema", "$defs", "$ref", "title", "description", "type", "enum", "pattern", "properties", "required"]
) | {"additionalProperties", "minProperties", "items", "minItems", "uniqueItems"}
_MAX_TEXT = 1 << 20  # bytes; a matrix has two thousand
_WORDS = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "boolean": "true or false",
}
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, kw_only=True, slots=True)
class Located:
    """A parsed file: its values, and the line (from 1) on which each stands."""

    name: str
    data: Any
    lines: Mapping[Path, int]

    def fault(self, path: Path, text: str) -> str:
        """*text* as ``file:line: path: text``."""
        known = next(path[:end] for end in range(len(path), -1, -1) if path[:end] in self.lines)
        where = dotted(path)
        return f"{self.name}:{self.lines[known]}: {where + ': ' if where else ''}{text}"


def parse(text: str, *, name: str) -> Located:
    """*text* as YAML, without anchors, tags and doubled keys.

    :raises ConfigError: not such YAML; every fault with its line.
    """
    if len(text) > _MAX_TEXT:
        raise ConfigError(f"{name}: longer than {_MAX_TEXT} characters")
    try:
        # An alias multiplies what it names, so a short file could fill the memory: look before composing.
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                start: Any = event.start_mark
                line = start.line + 1
                raise ConfigError(
                    f"{name}:{line}: anchors and aliases (& and *) are not allowed; write it out"
                )
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark: Any = error.problem_mark or error.context_mark  # libyaml's mark is a class of its own
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{name}:{line}: not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}:1: not valid YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise ConfigError(f"{name}: nested too deep") from None
    if root is None:
        raise ConfigError(f"{name}:1: the file is empty")
    lines: dict[Path, int] = {}
    wrong: list[str] = []
    data = _value(root, (), name, lines, wrong)
    if wrong:
        raise ConfigError.of(wrong)
    return Located(name=name, data=data, lines=lines)


def faults(located: Located, schema: Mapping[str, Any]) -> list[str]:
    """Everything in *located* that *schema* forbids; empty if it fits."""
    return [located.fault(path, text) for path, text in _faults(located.data, schema, (), schema)]


def dotted(path: Path) -> str:
    """`("bounds", 0, "torch")` as `bounds[0].torch`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def did_you_mean(word: str, valid: Sequence[str]) -> str:
    """`; nearest valid: a, b`, or all of *valid* when nothing is near."""
    near = difflib.get_close_matches(word, valid, n=2, cutoff=0.5)
    return f"; nearest valid: {', '.join(near)}" if near else f"; valid: {', '.join(valid)}"


def _value(node: yaml.Node, path: Path, name: str, lines: dict[Path, int], wrong: list[str]) -> Any:
    line = node.start_mark.line + 1
    lines.setdefault(path, line)
    if isinstance(node, yaml.SequenceNode):
        return [_value(child, (*path, index), name, lines, wrong) for index, child in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key_node, child in node.value:
            at = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                wrong.append(f"{name}:{at}: a key must be a word")
                continue
            key = str(key_node.value)
            place: Path = (*path, key)
            if key in found:
                wrong.append(f"{name}:{at}: {dotted(place)}: stands twice, first on line {lines[place]}")
                continue
            lines[place] = at
            found[key] = _value(child, place, name, lines, wrong)
        return found
    return _scalar(node, name, line, wrong)


def _scalar(node: yaml.Node, name: str, line: int, wrong: list[str]) -> Any:
    text = str(node.value)
    kind = node.tag.rpartition(":")[2]
    try:
        if kind == "int":
            return int(text, 0)
        if kind == "float":
            return float(text)
    except ValueError:  # YAML's rarer spellings of numbers, 1_000 and 12:30, are text to us
        return text
    if kind == "bool":
        return text.lower() in ("yes", "true", "on")
    if kind == "null":
        return None
    if kind not in ("str", "timestamp", "int", "float"):
        wrong.append(f"{name}:{line}: tags ({node.tag}) are not allowed")
    return text


def _faults(
    value: Any, schema: Mapping[str, Any], path: Path, root: Mapping[str, Any]
) -> Iterator[tuple[Path, str]]:
    if reference := schema.get("$ref"):
        schema = root["$defs"][reference.rpartition("/")[2]]
    expected = schema.get("type")
    if expected and not _is(value, expected):
        yield path, _wrong_type(value, expected)
        return
    if "enum" in schema and value not in schema["enum"]:
        yield path, f"{value!r} is not known" + did_you_mean(str(value), schema["enum"])
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield path, f"{value!r} is not {schema['description']}"
    if isinstance(value, dict):
        yield from _mapping_faults(value, schema, path, root)
    elif isinstance(value, list):
        yield from _list_faults(value, schema, path, root)


def _mapping_faults(
    value: dict[str, Any], schema: Mapping[str, Any], path: Path, root: Mapping[str, Any]
) -> Iterator[tuple[Path, str]]:
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties", {})
    for key, child in value.items():
        if key in properties:
            yield from _faults(child, properties[key], (*path, key), root)
        elif others is False:
            yield (*path, key), "unknown key" + did_you_mean(key, list(properties))
        else:
            yield from _faults(child, others, (*path, key), root)
    for key in schema.get("required", ()):
        if key not in value:
            yield path, f"the key {key!r} is missing"
    if len(value) < schema.get("minProperties", 0):
        yield path, "must not be empty"


def _list_faults(
    value: list[Any], schema: Mapping[str, Any], path: Path, root: Mapping[str, Any]
) -> Iterator[tuple[Path, str]]:
    if len(value) < schema.get("minItems", 0):
        yield path, "must not be empty"
    for index, child in enumerate(value):
        if schema.get("uniqueItems") and child in value[:index]:
            yield (*path, index), f"{child!r} stands twice"
        yield from _faults(child, schema.get("items", {}), (*path, index), root)


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):  # a bool is an int to Python, not to YAML
        return kind == "boolean"
    return isinstance(
        value, {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}[kind]
    )


def _wrong_type(value: Any, expected: str) -> str:
    told = "nothing" if value is None else f"{value!r}" if isinstance(value, (str, int, float)) else None
    told = told or ("a mapping" if isinstance(value, dict) else "a list")
    advice = "; put it in quotes" if expected == "string" and isinstance(value, (int, float)) else ""
    return f"must be {_WORDS[expected]}, not {told}{advice}"
