"""collectives: the collectives besides all-reduce move every element to its place."""

import pytest

from smoke_tests.ranks import gpus_of_torch, measure_group, run_ranks


@pytest.mark.tier(2)
@pytest.mark.limit(300)
def test_collectives(measure):
    """Broadcast from each rank, all-gather, reduce-scatter, and a ring of sends and receives: all exact."""
    world = gpus_of_torch()
    seen = run_ranks("collectives:exact", limit=240)

    measure_group(measure, seen)
    measure("broadcast", [rank["broadcast"] for rank in seen], equals=[[0] * world] * world)
    for name in ("all_gather", "reduce_scatter", "ring"):
        measure(name, [rank[name] for rank in seen], equals=[0] * world)
