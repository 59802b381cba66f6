"""Pure functions of torchkiln that remember their results: a test run repeats the same calls.

Without this, a quarter of the CPU time of tests that publish, verify or list is spent on them.
"""

from __future__ import annotations

from functools import lru_cache

from torchkiln.matrix import gpu_archs
from torchkiln.smoke import suite


def remember() -> None:
    """From now on, in this process and in those that fork from it."""
    # The nearest cells and the aliases of a cell ask the same thousands of times, in each command.
    loaded = lru_cache(maxsize=4096)(gpu_archs._loaded)
    gpu_archs._loaded = lambda archs, capability: loaded(tuple(archs), capability)
    # Each command that reads a suite of smoke tests compiles the same modules.
    suite.compile = lru_cache(maxsize=256)(compile)
