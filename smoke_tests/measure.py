"""Compare the measured values of a check with their bounds.

The report contains both, so that they can be compared again. Bounds: `equals`, `at_least`, `at_most`; a value
without a bound is only recorded.
"""

from __future__ import annotations

import json
import math
from typing import Any

_NOTHING: Any = object()


class Measure:
    """The measured values of a check; call it once for each value."""

    def __init__(self) -> None:
        self.measured: dict[str, Any] = {}
        self.threshold: dict[str, dict[str, Any]] = {}

    def __call__(
        self, name: str, value: Any, *, equals: Any = _NOTHING, at_least: Any = None, at_most: Any = None
    ) -> None:
        """Record *value* under *name* with its bound; all values are checked when the check ends.

        :raises ValueError: *name* was measured before.
        """
        if name in self.measured:
            raise ValueError(f"{name} is measured twice")
        self.measured[name] = plain(value)
        bound = {
            key: plain(limit)
            for key, limit in (("at_least", at_least), ("at_most", at_most))
            if limit is not None
        }
        if equals is not _NOTHING:
            bound["equals"] = plain(equals)
        if bound:
            self.threshold[name] = bound

    def faults(self) -> list[str]:
        """A sentence for each value that is not within its bound, and one if nothing was bounded."""
        if not self.threshold:
            return ["the check bounded nothing: it could not have failed"]
        return [
            f"{name}: {told}"
            for name, bound in self.threshold.items()
            if (told := fault(self.measured[name], bound))
        ]


def plain(value: Any) -> Any:
    """*value* converted to JSON and back; infinities and NaN become text, within no numeric bound."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return json.loads(json.dumps(value))


def fault(value: Any, bound: dict[str, Any]) -> str:
    """Why *value* is not within *bound*; empty when it is."""
    if "equals" in bound and value != bound["equals"]:
        return difference(value, bound["equals"])
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if "at_least" in bound and not (number and value >= bound["at_least"]):
        return f"{value!r} is not at least {bound['at_least']!r}"
    if "at_most" in bound and not (number and value <= bound["at_most"]):
        return f"{value!r} is not at most {bound['at_most']!r}"
    return ""


def difference(value: Any, wanted: Any) -> str:
    """How *value* differs from *wanted*; of mappings and lists only the entries that differ."""
    if isinstance(value, dict) and isinstance(wanted, dict):
        parts = [f"{key} is missing (wanted {wanted[key]!r})" for key in wanted if key not in value]
        parts += [f"{key} is not wanted (is {value[key]!r})" for key in value if key not in wanted]
        parts += [
            f"{key} is {value[key]!r}, wanted {wanted[key]!r}"
            for key in value
            if key in wanted and value[key] != wanted[key]
        ]
        return _joined(parts)
    if isinstance(value, list) and isinstance(wanted, list):
        parts = [f"{item!r} is missing" for item in wanted if item not in value]
        parts += [f"{item!r} is not wanted" for item in value if item not in wanted]
        return _joined(parts) if parts else f"{value!r} is in another order than {wanted!r}"
    return f"is {value!r}, wanted {wanted!r}"


def _joined(parts: list[str], most: int = 12) -> str:
    more = [f"and {len(parts) - most} more"] if len(parts) > most else []
    return "; ".join([*parts[:most], *more])
