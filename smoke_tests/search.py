"""A question that is answered with yes up to some number -> that number, with few questions. No torch."""

from __future__ import annotations

from collections.abc import Callable


def largest(fits: Callable[[int], bool], first: int, grain: int) -> int:
    """The largest that fits, to *grain*: doubled until one does not, then the gap halved. 0: none does.

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
