"""What this machine's GPU can do: a check that does not apply to it is not tried."""

from __future__ import annotations

import functools

import pytest

from smoke_tests.applicable import not_applicable
from smoke_tests.gpus import capability
from smoke_tests.probe import probe
from tests.smoke_mutants.mutant import environment


def skip_unless_it_applies(check: str) -> None:
    """Skip where the runner would not run *check* either, by the same facts."""
    if fact := not_applicable(check, environment(), _capability()):
        pytest.skip(f"not applicable: {fact}")


@functools.cache
def _capability() -> tuple[int, int] | None:
    return capability({"driver": probe("driver")})
