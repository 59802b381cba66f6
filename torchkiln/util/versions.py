"""Parses and compares version strings of dotted numbers: releases, CUDA versions, drivers, capabilities.

Full PEP 440 parsing is not needed for them, and slow to import.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import lru_cache

DOTTED = re.compile(r"\d+(\.\d+)*")
_CLOSE = 10  # a greater difference of two numbers is probably a typing error
_NEAREST = 3


@lru_cache(maxsize=1024)  # a cell's aliases compare the same few versions thousands of times
def numbers(version: str) -> tuple[int, ...]:
    """`"12.10"` as `(12, 10)`.

    :raises ValueError: not dotted numbers.
    """
    return tuple(int(part) for part in version.split("."))


def minor_of(version: str) -> str:
    """`"2.7.1"` as `"2.7"`."""
    return ".".join(version.split(".")[:2])


def major_of(version: str) -> str:
    """`"12.1"` as `"12"`."""
    return version.split(".")[0]


def newest(versions: Iterable[str]) -> str:
    return max(versions, key=numbers)


def nearest(value: str, valid: Iterable[str]) -> tuple[str, ...]:
    """Up to three of the *valid* values that are most similar to *value*, best first.

    Versions are compared by their numbers, words by spelling. A version that is far from all *valid* ones is
    compared by spelling, too, because a dot is probably missing: 2.77 for 2.7.1.
    """
    choices = list(dict.fromkeys(valid))
    by_number: tuple[str, ...] = ()
    if DOTTED.fullmatch(value) and all(DOTTED.fullmatch(choice) for choice in choices):
        ordered = sorted(choices, key=lambda choice: abs(_position(value) - _position(choice)))
        by_number = tuple(ordered[:_NEAREST])
        if any(_is_close(value, choice) for choice in choices):
            return by_number
    by_fold = {choice.casefold(): choice for choice in reversed(choices)}
    found = difflib.get_close_matches(value.casefold(), by_fold, n=_NEAREST, cutoff=0.5)
    return tuple(by_fold[name] for name in found) or by_number


def _is_close(version: str, other: str) -> bool:
    """Whether both are at most `_CLOSE` apart: in the minor if the major is the same, else in the major."""
    major, minor = (*numbers(version), 0)[:2]
    other_major, other_minor = (*numbers(other), 0)[:2]
    return abs(minor - other_minor if major == other_major else major - other_major) <= _CLOSE


def _position(version: str) -> int:
    """A number for distances: a difference in a component weighs a thousand times that in the next."""
    return sum(number * 1000 ** (4 - place) for place, number in enumerate(numbers(version)[:5]))
