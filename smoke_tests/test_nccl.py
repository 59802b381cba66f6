"""nccl-all-reduce: NCCL sums over all GPUs, and every element is correct on each rank."""

import pytest

from smoke_tests.ranks import measure_group, run_ranks

VALUES = {
    "nccl-all-reduce": {
        "backend": {"expected": "nccl_on_each"},
        "world": {"expected": "worlds"},
        "gpus": {"expected": "ranks"},
        "loaded_nccl": {"type": ["string"]},  # of all ranks, without repetitions
        "nccl": {"expected": "nccl"},
        "sums": {"equals": [20]},  # number of sums (types times sizes) on each rank, without repetitions
        "wrong": {"type": [{"*": ["integer"]}]},
        "wrong_elements": {"equals": 0},
    },
}


@pytest.mark.tier(2)
@pytest.mark.limit(300)
def test_nccl_all_reduce(claims, measure):
    """With one process per GPU, rank-dependent integers of several sizes and types are summed exactly."""
    results = run_ranks("all_reduce:exact", limit=240)

    measure_group(measure, results)
    measure("world", [rank["world"] for rank in results])
    loaded = sorted({rank["nccl"] for rank in results})
    measure("loaded_nccl", loaded)
    # Without a lock, NCCL can be inside torch or from the system, so no version is expected.
    measure("nccl", ", ".join(loaded) if claims["nccl"] else None)
    measure("sums", sorted({len(rank["wrong"]) for rank in results}))
    measure("wrong", [rank["wrong"] for rank in results])
    measure("wrong_elements", sum(sum(pair) for rank in results for pair in rank["wrong"].values()))
