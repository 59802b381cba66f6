"""fsdp: training that is sharded over all GPUs gives the same result with less memory on each."""

import pytest

from smoke_tests.ranks import measure_group, run_ranks

VALUES = {
    "fsdp": {
        "backend": {"expected": "nccl_on_each"},
        "gpus": {"expected": "ranks"},
        "bytes": {"type": [{"*": "number"}]},
        "errors": {"type": ["number"]},
        # The rounding of FP64; gradients of another batch are off by about 1.
        "largest_error": {"at_most": 1e-9},
        "largest_memory_ratio": {"at_most": "share_of_memory"},
    },
}


@pytest.mark.tier(2)
@pytest.mark.limit(300)
def test_fsdp(measure):
    """Two AdamW steps equal those of one GPU with the joint batch, and each rank holds only its shard."""
    results = run_ranks("fsdp:steps", limit=240)

    measure_group(measure, results)
    measure("bytes", [rank["bytes"] for rank in results])
    measure("errors", [rank["error"] for rank in results])
    measure("largest_error", max(rank["error"] for rank in results))
    measure("largest_memory_ratio", max(rank["bytes"]["ratio"] for rank in results))
