"""Decide whether a check applies, from facts and compute capability. Imports no torch.

The reason is the id of a fact, never a sentence, so that readers of a report, such as the gate, can compute
it again. torchkiln/data/compat.yaml has the text and the sources of each fact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Cell(NamedTuple):
    """The input of the rules."""

    torch: tuple[int, ...]
    python: tuple[int, ...]
    flavor: str
    capability: tuple[int, int] | None  # the lowest of the GPUs; None (no GPU) excludes no check
    cut: bool  # the image has device code for some GPUs only


Rule = tuple[str, Callable[[Cell], bool]]


def _below(major: int, minor: int) -> Callable[[Cell], bool]:
    return lambda cell: cell.capability is not None and cell.capability < (major, minor)


def _before(torch: tuple[int, int], *, python: tuple[int, int]) -> Callable[[Cell], bool]:
    return lambda cell: cell.torch < torch and cell.python >= python


_NO_COMPILE: tuple[Rule, ...] = (
    ("no-compile-on-3.11", _before((2, 1), python=(3, 11))),
    ("no-compile-on-3.12", _before((2, 4), python=(3, 12))),
    ("no-compile-on-3.13", _before((2, 6), python=(3, 13))),
)
RULES: Mapping[str, tuple[Rule, ...]] = {
    "compile-cpu": _NO_COMPILE,
    "compile-gpu": (*_NO_COMPILE, ("triton-needs-7.0", _below(7, 0))),
    "bf16": (("bf16-needs-8.0", _below(8, 0)),),
    "sdpa": (("flash-needs-8.0", _below(8, 0)),),
    "fp8": (
        ("fp8-needs-torch-2.1", lambda cell: cell.torch < (2, 1)),
        ("fp8-needs-8.9", _below(8, 9)),
        ("fp8-needs-9.0-before-2.3", lambda cell: cell.torch < (2, 3) and _below(9, 0)(cell)),
    ),
    "semi-structured": (
        ("semi-structured-needs-torch-2.6", lambda cell: cell.torch < (2, 6)),
        ("semi-structured-needs-8.0", _below(8, 0)),
    ),
    "device-code": (("device-code-is-whole", lambda cell: not cell.cut),),
    "benchmark": (("tf32-needs-8.0", _below(8, 0)),),
    "extension": (("extension-is-for-devel", lambda cell: cell.flavor != "devel"),),
}


def not_applicable(check: str, facts: Mapping[str, Any], capability: tuple[int, int] | None) -> str | None:
    """The id of the fact that excludes *check* for this image; None: the check applies."""
    rules = RULES.get(check, ())
    cell = _cell(facts, capability) if rules else None
    return next((fact for fact, excludes in rules if cell and excludes(cell)), None)


def _cell(facts: Mapping[str, Any], capability: tuple[int, int] | None) -> Cell:
    claims = facts["claims"]
    torch, python = _numbers(claims["torch"]), _numbers(claims["python"])
    return Cell(torch, python, claims["flavor"], capability, bool(claims.get("gpus")))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2])
