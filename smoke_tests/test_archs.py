"""archs: this torch has code for exactly the GPU architectures in the facts."""

import pytest

from smoke_tests.probe import probe

VALUES = {"archs": {"archs": {"expected": "archs"}}}


@pytest.mark.tier(0)
def test_archs(facts, measure):
    """The flags are compiled in, so they can be read without a GPU."""
    measure("archs", sorted(probe("archs")))
