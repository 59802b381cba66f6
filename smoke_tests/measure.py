"""Record the measured values of a check and compare them with its declaration (values.py).

The report contains values and bounds, so that they can be compared again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from smoke_tests.values import Declared, bounds, kind_fault, same


class Measure:
    """The measured values of a check; call it once for each declared value."""

    def __init__(self, declared: Declared, expected: Callable[[str], Any]) -> None:
        self._declared = declared
        self._expected = expected
        self.measured: dict[str, Any] = {}

    def __call__(self, name: str, value: Any) -> None:
        """Record *value* under *name*; all values are compared when the check ends.

        :raises ValueError: *name* is not declared, or was measured before.
        """
        if name not in self._declared:
            raise ValueError(f"{name} is not declared in VALUES")
        if name in self.measured:
            raise ValueError(f"{name} is measured twice")
        self.measured[name] = plain(value)

    @property
    def threshold(self) -> dict[str, dict[str, Any]]:
        """The bounds of the measured values."""
        found = bounds(self._declared, self._expected)
        return {name: bound for name, bound in found.items() if name in self.measured}

    def faults(self, *, complete: bool = True) -> list[str]:
        """A sentence for each value that has another type or is out of bounds. With *complete*, also for each
        value that was not measured, and one if no value has a bound."""
        threshold = self.threshold
        if complete and not threshold:
            return ["no value has a bound, so the check cannot fail"]
        messages = [(name, self._fault(name, threshold.get(name, {}))) for name in self.measured]
        if complete:
            messages += [(name, "not measured") for name in self._declared if name not in self.measured]
        return [f"{name}: {message}" for name, message in messages if message]

    def _fault(self, name: str, bound: dict[str, Any]) -> str:
        kind = self._declared[name].get("type", "number" if "equals" not in bound else "any")
        return fault(self.measured[name], bound) or kind_fault(self.measured[name], kind)


def plain(value: Any) -> Any:
    """*value* converted to JSON and back; infinities and NaN become strings, which are within no numeric
    bound."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return json.loads(json.dumps(value))


def fault(value: Any, bound: dict[str, Any]) -> str:
    """Why *value* is not within *bound*; empty when it is."""
    if "equals" in bound and not same(value, bound["equals"]):
        return difference(value, bound["equals"])
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if "at_least" in bound and not (number and value >= bound["at_least"]):
        return f"{value!r} is not at least {bound['at_least']!r}"
    if "at_most" in bound and not (number and value <= bound["at_most"]):
        return f"{value!r} is not at most {bound['at_most']!r}"
    return ""


def difference(value: Any, expected: Any) -> str:
    """How *value* differs from *expected*; for objects and lists, only the entries that differ."""
    if isinstance(value, dict) and isinstance(expected, dict):
        parts = [f"{key} is missing (expected {expected[key]!r})" for key in expected if key not in value]
        parts += [f"{key} is not expected (is {value[key]!r})" for key in value if key not in expected]
        parts += [
            f"{key} is {value[key]!r}, expected {expected[key]!r}"
            for key in value
            if key in expected and value[key] != expected[key]
        ]
        return _joined(parts)
    if isinstance(value, list) and isinstance(expected, list):
        parts = [f"{item!r} is missing" for item in expected if item not in value]
        parts += [f"{item!r} is not expected" for item in value if item not in expected]
        return _joined(parts) if parts else f"{value!r} has another order than {expected!r}"
    return f"is {value!r}, expected {expected!r}"


def _joined(parts: list[str], most: int = 12) -> str:
    more = [f"and {len(parts) - most} more"] if len(parts) > most else []
    return "; ".join([*parts[:most], *more])
