"""Data classes <-> plain values of JSON, and the JSON Schema of a data class, all from its type hints.

A field that equals its default is left out of the plain values. A field with ``compare=False`` is no part
of the value: neither writer, reader nor schema knows it. A field whose JSON form differs from its type has
that form's schema in its metadata, under SCHEMA; its reader and writer adapt it. The fields of a data class
under INLINE stand among those of the class that holds it; its reader gathers them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

SCHEMA = "json-schema"  # keys of a field's metadata
INLINE = "inline"

T = TypeVar("T")


def plain(value: Any) -> Any:
    """*value* as dicts, lists, text, numbers: what `json.dumps` takes."""
    if is_dataclass(value) and not isinstance(value, type):
        values: dict[str, Any] = {}
        for field in fields(value):
            found = getattr(value, field.name)
            if field.compare and found != _default(field):
                values |= plain(found) if INLINE in field.metadata else {field.name: plain(found)}
        return values
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value.value if isinstance(value, Enum) else value


def typed(kind: type[T], document: Any) -> T:
    """The inverse of `plain`, for a *document* that fits the schema of *kind*.

    :raises ValueError: it does not fit.
    """
    return msgspec.convert(document, kind, strict=True)


def schema_of(kind: type) -> dict[str, Any]:
    """The JSON Schema of `plain` of a *kind*; the data classes below it are its `$defs`."""
    _, parts = msgspec.json.schema_components((kind,), ref_template="#/$defs/{name}")
    for found in dict.fromkeys(_classes(inspect.type_info(kind))):
        _adapt(parts[found.__name__], found, parts)
    for name, part in parts.items():
        parts[name] = {key: value for key, value in part.items() if key not in ("title", "description")}
    schema = parts.pop(kind.__name__)
    needed = _references(schema, parts)
    return {**schema, "$defs": {name: parts[name] for name in sorted(needed)}} if needed else schema


def _adapt(schema: dict[str, Any], kind: type, parts: Mapping[str, Any]) -> None:
    """Change *schema*, which msgspec made of the data class *kind*, to what `plain` writes."""
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
    """*schema* without the field's default, which is not written; and "this or null" without `anyOf`."""
    found = {key: value for key, value in schema.items() if key != "default"}
    if field.default == ():
        found["minItems"] = 1
    elif field.default is False:
        return {"const": True}
    if "anyOf" in found:
        found, _null = (dict(one) for one in found["anyOf"])
        if field.default is not None:
            found["type"] = [found["type"], "null"]
    return found


def _classes(found: inspect.Type) -> Iterator[type]:
    """The data classes at and below *found*, what is below first."""
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
            for one in found.types:
                yield from _classes(one)


def _references(schema: Any, parts: Mapping[str, Any]) -> set[str]:
    """The names of *parts* that *schema* refers to, and those that they refer to."""
    if isinstance(schema, Mapping):
        name = str(schema.get("$ref", "")).rpartition("/")[2]
        below = {name} | _references(parts[name], parts) if name in parts else set()
        return below.union(*(_references(value, parts) for value in schema.values()))
    if isinstance(schema, list):
        return set().union(*(_references(value, parts) for value in schema))
    return set()


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default
