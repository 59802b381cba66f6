"""Validates plain values against JSON Schemas and returns every violation with its path.

It supports the keywords that torchkiln's schemas use. The jsonschema package takes 0.3 s to import, too long
for a build that changes nothing; tests compare both. A `$` in a pattern matches only at the end of the text,
as in JSON Schema, while Python's also matches before a final newline.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import Any

from torchkiln.util.strict_json import equal

Path = tuple[str | int, ...]
#: A path in the value, and a message.
Violation = tuple[Path, str]

#: The keywords that `violations` supports; a test checks that torchkiln's schemas use no others.
KEYWORDS = frozenset(
    [
        *("$schema", "$defs", "$ref", "title", "description", "type", "const", "enum", "pattern"),
        *("minLength", "maxLength", "minimum", "maximum", "properties", "required", "propertyNames"),
        *("additionalProperties", "minProperties", "items", "minItems", "maxItems", "uniqueItems"),
    ]
)
_MAX_VIOLATIONS = 50
_TYPES: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "object": ("a mapping", (dict,)),
    "array": ("a list", (list,)),
    "string": ("text", (str,)),
    "integer": ("a whole number", (int,)),
    "number": ("a number", (int, float)),
    "boolean": ("true or false", (bool,)),
    "null": ("nothing", (type(None),)),
}


#: Parts of schemas that are written in code.
TEXT: Mapping[str, Any] = {"type": "string"}
DIGEST: Mapping[str, Any] = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}


def mapping(required: Mapping[str, Any], **optional: Any) -> dict[str, Any]:
    """The schema of a mapping that has the *required* keys; it may have *optional* and any other keys."""
    return {"type": "object", "required": list(required), "properties": {**required, **optional}}


def list_of(items: Mapping[str, Any], **limits: int) -> dict[str, Any]:
    return {"type": "array", "items": items, **limits}


@cache
def shipped(name: str) -> dict[str, Any]:
    """torchkiln's own schema *name*, "lock"."""
    found: dict[str, Any] = json.loads(shipped_text(name))
    return found


def shipped_text(name: str) -> bytes:
    """The file of torchkiln's own schema *name*."""
    return files("torchkiln").joinpath(f"data/{name}.schema.json").read_bytes()


def violations(
    value: Any,
    schema: Mapping[str, Any],
    *,
    written: Callable[[Path, Any], str] = lambda _, value: shown(value),
) -> list[Violation]:
    """The first fifty violations of *schema* in *value*; empty if it is valid.

    *written* returns a value as its author wrote it, for messages.
    """
    return list(islice(_Check(schema, written).faults(value, schema, ()), _MAX_VIOLATIONS))


def sentences(value: Any, schema: Mapping[str, Any], where: str, *, at: Path = ()) -> list[str]:
    """`violations` as lines, ``where: path: message``; *at* is the path of *value* in its file."""
    return [
        f"{where}: {dotted((*at, *path))}: {message}" if at or path else f"{where}: {message}"
        for path, message in violations(value, schema)
    ]


def dotted(path: Path) -> str:
    """`("bounds", 0, "torch")` as `bounds[0].torch`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part[:80]}" for part in path).lstrip(".")


def did_you_mean(word: str, valid: Sequence[str]) -> str:
    """`; nearest valid: a, b`, or all of *valid* if none is similar."""
    near = difflib.get_close_matches(word[:80], valid, n=2, cutoff=0.5)
    return f"; nearest valid: {', '.join(near)}" if near else f"; valid: {', '.join(valid)}"


def shown(value: Any) -> str:
    """*value* for a message: quoted and truncated."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = value if isinstance(value, str) else str(value)
    text = text if len(text) <= 100 else text[:100] + "…"
    return repr(text) if isinstance(value, str) else text


class _Check:
    def __init__(self, root: Mapping[str, Any], written: Callable[[Path, Any], str]) -> None:
        self._root, self._written = root, written

    def faults(self, value: Any, schema: Any, path: Path) -> Iterator[Violation]:
        """Every violation in *value* at *path*."""
        if schema is True:
            return
        if reference := schema.get("$ref"):
            schema = {**schema, **self._root["$defs"][reference.rpartition("/")[2]]}
        expected = schema.get("type")
        kinds = [expected] if isinstance(expected, str) else expected
        if kinds is not None and not any(_is(value, kind) for kind in kinds):
            yield path, self._wrong_type(value, kinds, path)
            return
        if "const" in schema and not equal(value, schema["const"]):
            yield path, f"must be {shown(schema['const'])}, not {self._written(path, value)}"
        if "enum" in schema and not any(equal(value, valid) for valid in schema["enum"]):
            near = did_you_mean(str(value), schema["enum"]) if isinstance(value, str) else ""
            yield path, f"{self._written(path, value)} is not valid" + near
        if isinstance(value, str):
            yield from self._text(value, schema, path)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield from self._number(value, schema, path)
        elif isinstance(value, dict):
            yield from self._mapping(value, schema, path)
        elif isinstance(value, list):
            yield from self._list(value, schema, path)

    def _text(self, value: str, schema: Mapping[str, Any], path: Path) -> Iterator[Violation]:
        if "pattern" in schema and not _pattern(schema["pattern"]).search(value):
            expected = schema.get("description", f"of the form {schema['pattern']}")
            what, comma, example = expected.partition(', "')
            yield path, f"{shown(value)} is not {what}" + (f'; example: "{example}' if comma else "")
        low, high = schema.get("minLength", 0), schema.get("maxLength", math.inf)
        if not low <= len(value) <= high:
            limit = f"at least {low} are required" if len(value) < low else f"at most {high} are allowed"
            yield path, f"{shown(value)} has {len(value)} characters; {limit}"

    def _number(self, value: float, schema: Mapping[str, Any], path: Path) -> Iterator[Violation]:
        low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
        if not low <= value <= high:
            limit = f"less than {low}" if value < low else f"greater than {high}"
            yield path, f"{shown(value)} is {limit}"

    def _mapping(self, value: dict[str, Any], schema: Mapping[str, Any], path: Path) -> Iterator[Violation]:
        properties = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        names = schema.get("propertyNames", True)
        for key, child in value.items():
            if names is not True:
                yield from self.faults(key, names, (*path, key))
            if key in properties:
                yield from self.faults(child, properties[key], (*path, key))
            elif others is False:
                yield (*path, key), "unknown key" + did_you_mean(key, list(properties))
            else:
                yield from self.faults(child, others, (*path, key))
        for key in schema.get("required", ()):
            if key not in value:
                yield path, f"the key {key!r} is missing"
        if len(value) < schema.get("minProperties", 0):
            yield path, "must not be empty"

    def _list(self, value: list[Any], schema: Mapping[str, Any], path: Path) -> Iterator[Violation]:
        if len(value) < schema.get("minItems", 0):
            yield path, "must not be empty"
        if len(value) > schema.get("maxItems", math.inf):
            yield path, f"has {len(value)} entries; at most {schema['maxItems']} are allowed"
            return
        seen: set[str] = set()
        for index, child in enumerate(value):
            if schema.get("uniqueItems"):
                form = json.dumps(child, sort_keys=True)
                if form in seen:
                    yield (*path, index), f"duplicate entry {self._written((*path, index), child)}"
                seen.add(form)
            yield from self.faults(child, schema.get("items", True), (*path, index))

    def _wrong_type(self, value: Any, kinds: Sequence[str], path: Path) -> str:
        advice = "; put it in quotes" if "string" in kinds and isinstance(value, (int, float)) else ""
        expected = " or ".join(_TYPES[kind][0] for kind in kinds)
        return f"must be {expected}, not {self._written(path, value)}{advice}"


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text[:-1] + r"\Z" if text.endswith("$") else text)


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):  # a bool is an int to Python, not to YAML
        return kind == "boolean"
    return kind != "boolean" and isinstance(value, _TYPES[kind][1])
