"""Compare the values of a check with their declaration.

VALUES in the check's file declares each value: `{"equals": literal}`, `{"expected": name}` (of expected.py),
`at_least`, `at_most` (a number, or the name of an expected one), or only `{"type": kind}` for a value that is
recorded. A kind is "any", "boolean", "integer", "number", "string", [kind] for a list or {"*": kind} for an
object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Declared = Mapping[str, Mapping[str, Any]]


def bounds(declared: Declared, expected: Callable[[str], Any]) -> dict[str, dict[str, Any]]:
    """The bounds by name of the value, with each expected value computed."""
    found = {}
    for name, rule in declared.items():
        bound = {key: rule[key] for key in ("equals", "at_least", "at_most") if key in rule}
        for key in ("at_least", "at_most"):
            if isinstance(bound.get(key), str):
                bound[key] = expected(bound[key])
        if "expected" in rule:
            bound["equals"] = expected(rule["expected"])
        if bound:
            found[name] = bound
    return found


def kind_fault(value: Any, kind: Any) -> str:
    """Why *value* is not of *kind*; empty if it is. A boolean is not a number."""
    if isinstance(kind, list):
        items = value if isinstance(value, list) else None
        inner = kind[0]
    elif isinstance(kind, dict):
        items = list(value.values()) if isinstance(value, dict) else None
        inner = kind["*"]
    else:
        return "" if _KINDS[kind](value) else f"{value!r} is not of type {kind}"
    if items is None:
        return f"{value!r} is not {'a list' if isinstance(kind, list) else 'an object'}"
    return next((fault for item in items if (fault := kind_fault(item, inner))), "")


def same(value: Any, other: Any) -> bool:
    """Whether two JSON values are equal; unlike Python's ==, true is not 1."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(same(value[key], other[key]) for key in value)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(same, value, other))
    return bool(value == other)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "any": lambda value: True,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": _is_number,
    "string": lambda value: isinstance(value, str),
}
