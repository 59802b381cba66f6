"""(Check, facts) -> why it does not apply, or None. The one place that says so; pure, and without torch.

The reason is the id of a fact, never prose: whoever reads a report, the gate too, asks this function again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Cell(NamedTuple):
    """What the rules look at."""

    torch: tuple[int, ...]
    python: tuple[int, ...]
    flavor: str


RULES: Mapping[str, tuple[str, Callable[[Cell], bool]]] = {
    "compile-cpu": (
        "no-compile-on-3.11",
        lambda cell: cell.torch < (2, 1) and cell.python >= (3, 11),
    ),
}


def not_applicable(check: str, facts: Mapping[str, Any]) -> str | None:
    """The id of the fact for which *check* has nothing to prove in this image; None: it applies."""
    fact, excludes = RULES.get(check, ("", lambda _cell: False))
    return fact if excludes(_cell(facts)) else None


def _cell(facts: Mapping[str, Any]) -> Cell:
    claims = facts["claims"]
    return Cell(_numbers(claims["torch"]), _numbers(claims["python"]), claims["flavor"])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2])
