"""Find the largest number for which a predicate holds. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable


def largest(fits: Callable[[int], bool], first: int, grain: int) -> int:
    """The largest number that fits, to a multiple of *grain*, by doubling and bisection; 0 if none does.

    >>> largest(lambda batch: batch <= 45, first=8, grain=1)
    45
    """
    good, bad = 0, first
    while fits(bad):
        good, bad = bad, 2 * bad
    while bad - good > grain:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good
