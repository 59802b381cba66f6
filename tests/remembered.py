"""Caches for pure functions of torchkiln, because a test run repeats the same calls.

Commands that read a suite of smoke tests compile the same modules and list the same checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from torchkiln.smoke import suite


def remember() -> None:
    """Cache the results, in this process and in processes that it forks."""
    suite.compile = lru_cache(maxsize=256)(compile)
    checks = lru_cache(maxsize=64)(lambda files: real(dict(files)))
    real = suite._checks

    def remembered(files: Mapping[str, bytes]) -> tuple[suite.SuiteCheck, ...]:
        return checks(tuple(files.items()))

    suite._checks = remembered
