"""A pure function of torchkiln that remembers its results: a test run repeats the same calls.

Commands that read a suite of smoke tests compile the same modules.
"""

from __future__ import annotations

from functools import lru_cache

from torchkiln.smoke import suite


def remember() -> None:
    """From now on, in this process and in those that fork from it."""
    suite.compile = lru_cache(maxsize=256)(compile)
