"""Converts data classes to and from JSON values, and derives their JSON Schemas, from the type hints.

A field that equals its default is omitted from the JSON values. A field with ``compare=False`` is never
written, read or described. If the JSON form of a field differs from its type, the field's metadata has that
form's schema under SCHEMA, and callers convert the value. A field with INLINE in its metadata holds a data
class whose fields are written among those of the outer class; callers collect them when reading.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from threading import Lock
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

SCHEMA = "json-schema"  # keys of a field's metadata
INLINE = "inline"

T = TypeVar("T")

_ONE_THREAD = Lock()
_INSPECTED: set[type] = set()


def plain(value: Any) -> Any:
    """*value* as dicts, lists, text and numbers, for `json.dumps`."""
    if (written := _written(value.__class__)) is not None:
        values: dict[str, Any] = {}
        for name, default, inline in written:
            found = getattr(value, name)
            if found != default:
                values |= plain(found) if inline else {name: plain(found)}
        return values
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value.value if isinstance(value, Enum) else value


def typed(kind: type[T], document: Any) -> T:
    """The inverse of `plain`, for a *document* that matches the schema of *kind*.

    :raises ValueError: it does not match.
    """
    _inspect(kind)
    return msgspec.convert(document, kind, strict=True)


def _inspect(kind: type) -> None:
    """Let msgspec inspect *kind* and the classes nested in it, in one thread at a time.

    msgspec 0.22 crashes if several threads use a class for the first time: it shares its information about
    a class before that is complete.
    """
    with _ONE_THREAD:
        if kind not in _INSPECTED:
            msgspec.json.Decoder(kind)
            _INSPECTED.add(kind)


def schema_of(kind: type) -> dict[str, Any]:
    """The JSON Schema of what `plain` returns for a *kind*; the nested data classes are its `$defs`."""
    _, parts = msgspec.json.schema_components((kind,), ref_template="#/$defs/{name}")
    for found in dict.fromkeys(_classes(inspect.type_info(kind))):
        _adapt(parts[found.__name__], found, parts)
    for name, part in parts.items():
        parts[name] = {key: value for key, value in part.items() if key not in ("title", "description")}
    schema = parts.pop(kind.__name__)
    needed = _references(schema, parts)
    return {**schema, "$defs": {name: parts[name] for name in sorted(needed)}} if needed else schema


def _adapt(schema: dict[str, Any], kind: type, parts: Mapping[str, Any]) -> None:
    """Change *schema*, which msgspec derived from the data class *kind*, to match `plain`."""
    properties = schema["properties"]
    for field in fields(kind):
        if not field.compare:
            del properties[field.name]
        elif INLINE in field.metadata:
            part = parts[properties.pop(field.name)["$ref"].rpartition("/")[2]]
            properties |= part["properties"]
            schema["required"] = [name for name in schema["required"] if name != field.name]
            schema["required"] += part["required"]
        elif SCHEMA in field.metadata:
            properties[field.name] = field.metadata[SCHEMA]
        else:
            properties[field.name] = _simplified(properties[field.name], field)
    schema["additionalProperties"] = False


def _simplified(schema: dict[str, Any], field: Field[Any]) -> dict[str, Any]:
    """*schema* without the field's default, which is not written, and without `anyOf` for "or null"."""
    found = {key: value for key, value in schema.items() if key != "default"}
    if field.default == ():
        found["minItems"] = 1
    elif field.default is False:
        return {"const": True}
    if "anyOf" in found:
        found, _null = map(dict, found["anyOf"])
        if field.default is not None:
            found["type"] = [found["type"], "null"]
    return found


def _classes(found: inspect.Type) -> Iterator[type]:
    """The data classes in the type *found*, nested classes first."""
    match found:
        case inspect.DataclassType():
            for field in found.fields:
                yield from _classes(field.type)
            yield found.cls
        case inspect.Metadata():
            yield from _classes(found.type)
        case inspect.VarTupleType():
            yield from _classes(found.item_type)
        case inspect.UnionType():
            for member in found.types:
                yield from _classes(member)


def _references(schema: Any, parts: Mapping[str, Any]) -> set[str]:
    """The names of *parts* that *schema* refers to, directly or through other parts."""
    if isinstance(schema, Mapping):
        name = str(schema.get("$ref", "")).rpartition("/")[2]
        below = {name} | _references(parts[name], parts) if name in parts else set()
        return below.union(*(_references(value, parts) for value in schema.values()))
    if isinstance(schema, list):
        return set().union(*(_references(value, parts) for value in schema))
    return set()


@cache
def _written(kind: type) -> tuple[tuple[str, Any, bool], ...] | None:
    """Name, default, and whether INLINE, of each written field of *kind*; None: *kind* is no data class."""
    if not is_dataclass(kind):
        return None
    return tuple(
        (field.name, _default(field), INLINE in field.metadata) for field in fields(kind) if field.compare
    )


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default
