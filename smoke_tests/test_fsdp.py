"""fsdp: training that is sharded over all GPUs gives the same result with less memory on each."""

import pytest

from smoke_tests.ranks import gpus_of_torch, measure_group, run_ranks


@pytest.mark.tier(2)
@pytest.mark.limit(300)
def test_fsdp(measure):
    """Two AdamW steps equal those of one GPU with the joint batch, and each rank holds only its shard."""
    world = gpus_of_torch()
    seen = run_ranks("fsdp:steps", limit=240)

    measure_group(measure, seen)
    measure("bytes", [rank["bytes"] for rank in seen])
    for rank in seen:
        # FP64's rounding; gradients that are not those of the joint batch are off by about 1.
        measure(f"error_of_rank_{rank['rank']}", rank["error"], at_most=1e-9)
        # One share of weights and optimizer, and a little for padding.
        measure(f"memory_ratio_of_rank_{rank['rank']}", rank["bytes"]["ratio"], at_most=1 / world + 0.1)
