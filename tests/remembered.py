"""Caches for two pure functions of torchkiln, because commands of a test run repeat the same calls.

Each command that reads the smoke suite compiles the same modules and lists the same checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from torchkiln.smoke import suite


def remember() -> None:
    """Cache the compiled modules and the lists of checks, in this process and in processes that it forks."""
    suite.compile = lru_cache(maxsize=256)(compile)
    checks = lru_cache(maxsize=64)(lambda files: real(dict(files)))
    real = suite._checks

    def remembered(files: Mapping[str, bytes]) -> tuple[suite.SuiteCheck, ...]:
        return checks(tuple(files.items()))

    suite._checks = remembered
