"""A plain value and a schema -> every fault with its place.

The check reads the part of JSON Schema that our schemas use. The jsonschema package would do, but it
takes 0.3 s to import, which a build that changes nothing does not have; the tests hold both together.
A `$` in a pattern is the end of the text, as in JSON Schema: Python's also matches before a last newline.
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

Path = tuple[str | int, ...]
#: What is wrong, and where in the value.
Wrong = tuple[Path, str]

#: What `wrongs` understands; a test keeps our schemas to it.
KEYWORDS = frozenset(
    [
        *("$schema", "$defs", "$ref", "title", "description", "type", "const", "enum", "pattern"),
        *("minLength", "maxLength", "minimum", "maximum", "properties", "required", "propertyNames"),
        *("additionalProperties", "minProperties", "items", "minItems", "maxItems", "uniqueItems"),
    ]
)
_MOST = 50  # faults of one file that are told; nobody reads more
_WORDS = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "nothing",
}
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}


@cache
def shipped(name: str) -> dict[str, Any]:
    """The schema *name* of those that ship with torchkiln, "lock"."""
    found: dict[str, Any] = json.loads(files("torchkiln").joinpath(f"data/{name}.schema.json").read_bytes())
    return found


def wrongs(
    value: Any,
    schema: Mapping[str, Any],
    *,
    written: Callable[[Path, Any], str] = lambda _, value: told(value),
) -> list[Wrong]:
    """What in *value* the *schema* forbids, the first fifty; empty if it fits.

    *written* tells a value as its author wrote it, for messages.
    """
    return list(islice(_Check(schema, written).faults(value, schema, ()), _MOST))


def sentences(value: Any, schema: Mapping[str, Any], where: str, *, at: Path = ()) -> list[str]:
    """`wrongs` as lines, ``where: path: what``; *value* itself stands *at* this path of its file."""
    return [
        f"{where}: {dotted((*at, *path))}: {what}" if at or path else f"{where}: {what}"
        for path, what in wrongs(value, schema)
    ]


def dotted(path: Path) -> str:
    """`("bounds", 0, "torch")` as `bounds[0].torch`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part[:80]}" for part in path).lstrip(".")


def did_you_mean(word: str, valid: Sequence[str]) -> str:
    """`; nearest valid: a, b`, or all of *valid* when nothing is near."""
    near = difflib.get_close_matches(word[:80], valid, n=2, cutoff=0.5)
    return f"; nearest valid: {', '.join(near)}" if near else f"; valid: {', '.join(valid)}"


def told(value: Any) -> str:
    """*value* for a message: quoted, and no longer than a line."""
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

    def faults(self, value: Any, schema: Any, path: Path) -> Iterator[Wrong]:
        """Every fault of *value*, which stands at *path*."""
        if schema is True:
            return
        if reference := schema.get("$ref"):
            schema = {**schema, **self._root["$defs"][reference.rpartition("/")[2]]}
        expected = schema.get("type")
        kinds = [expected] if isinstance(expected, str) else expected or []
        if kinds and not any(_is(value, kind) for kind in kinds):
            yield path, self._wrong_type(value, kinds, path)
            return
        if "const" in schema and not _same(value, schema["const"]):
            yield path, f"must be {told(schema['const'])}, not {self._written(path, value)}"
        if "enum" in schema and not any(_same(value, one) for one in schema["enum"]):
            near = did_you_mean(str(value), schema["enum"]) if isinstance(value, str) else ""
            yield path, f"{self._written(path, value)} is not known" + near
        if isinstance(value, str):
            yield from self._text(value, schema, path)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield from self._number(value, schema, path)
        elif isinstance(value, dict):
            yield from self._mapping(value, schema, path)
        elif isinstance(value, list):
            yield from self._list(value, schema, path)

    def _text(self, value: str, schema: Mapping[str, Any], path: Path) -> Iterator[Wrong]:
        if "pattern" in schema and not _pattern(schema["pattern"]).search(value):
            wanted = schema.get("description", f"of the form {schema['pattern']}")
            yield path, f"{told(value)} is not {wanted}"
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", math.inf):
            yield path, f"{told(value)} has {len(value)} characters"

    def _number(self, value: float, schema: Mapping[str, Any], path: Path) -> Iterator[Wrong]:
        low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
        if not low <= value <= high:
            yield path, f"{told(value)} is too {'small' if value < low else 'large'}"

    def _mapping(self, value: dict[str, Any], schema: Mapping[str, Any], path: Path) -> Iterator[Wrong]:
        properties = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        names = schema.get("propertyNames", True)
        for key, child in value.items():
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

    def _list(self, value: list[Any], schema: Mapping[str, Any], path: Path) -> Iterator[Wrong]:
        if len(value) < schema.get("minItems", 0):
            yield path, "must not be empty"
        if len(value) > schema.get("maxItems", math.inf):
            yield path, f"has {len(value)} entries, {schema['maxItems']} at most"
            return
        seen: set[str] = set()
        for index, child in enumerate(value):
            if schema.get("uniqueItems"):
                form = json.dumps(child, sort_keys=True)
                if form in seen:
                    yield (*path, index), f"{self._written((*path, index), child)} stands twice"
                seen.add(form)
            yield from self.faults(child, schema.get("items", True), (*path, index))

    def _wrong_type(self, value: Any, kinds: Sequence[str], path: Path) -> str:
        advice = "; put it in quotes" if "string" in kinds and isinstance(value, (int, float)) else ""
        wanted = " or ".join(_WORDS[kind] for kind in kinds)
        return f"must be {wanted}, not {self._written(path, value)}{advice}"


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text[:-1] + r"\Z" if text.endswith("$") else text)


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):  # a bool is an int to Python, not to YAML
        return kind == "boolean"
    return kind != "boolean" and isinstance(value, _TYPES[kind])


def _same(value: Any, other: Any) -> bool:
    """Equal, and of one kind: 1 is not true."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)
