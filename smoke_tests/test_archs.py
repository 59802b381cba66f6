"""archs: this torch holds code for exactly the GPU architectures that the facts promise."""

import pytest

from smoke_tests.probe import probe


@pytest.mark.tier(0)
def test_archs(facts, measure):
    """The flags are compiled in, so they can be read where there is no GPU."""
    measure("archs", sorted(probe("archs")), equals=sorted(facts["claims"]["archs"]))
