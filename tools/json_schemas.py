"""Derives the JSON Schemas of data classes, for the values that `torchkiln.util.codec` writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, fields
from typing import Any

import msgspec
from msgspec import inspect

from torchkiln.util.codec import INLINE, SCHEMA


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
