"""collectives: the collectives besides all-reduce move every element to its place."""

import pytest

from smoke_tests.ranks import measure_group, run_ranks

VALUES = {
    "collectives": {
        "backend": {"expected": "nccl_on_each"},
        "gpus": {"expected": "ranks"},
        # Wrong elements on each rank.
        "broadcast": {"expected": "zero_from_each_on_each"},
        "all_gather": {"expected": "zero_on_each"},
        "reduce_scatter": {"expected": "zero_on_each"},
        "ring": {"expected": "zero_on_each"},
    },
}


@pytest.mark.tier(2)
@pytest.mark.limit(300)
def test_collectives(measure):
    """Broadcast from each rank, all-gather, reduce-scatter, and a ring of sends and receives are exact."""
    results = run_ranks("collectives:exact", limit=240)

    measure_group(measure, results)
    for name in ("broadcast", "all_gather", "reduce_scatter", "ring"):
        measure(name, [rank[name] for rank in results])
