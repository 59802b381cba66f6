"""Converts data classes to and from JSON values, by the type hints.

A field that equals its default is omitted from the JSON values. A field with ``compare=False`` is never
written or read. If the JSON form of a field differs from its type, the field's metadata has that form's JSON
Schema under SCHEMA, and callers convert the value; tools/schemas.py derives the other schemas. A field with
INLINE in its metadata holds a data class whose fields are written among those of the outer class; callers
collect them when reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from threading import Lock
from typing import Any, TypeVar

import msgspec

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


@cache
def _written(kind: type) -> tuple[tuple[str, Any, bool], ...] | None:
    """Name, default, and whether INLINE, of each written field of *kind*; None: *kind* is no data class."""
    if not is_dataclass(kind):
        return None
    return tuple((one.name, _default(one), INLINE in one.metadata) for one in fields(kind) if one.compare)


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default
