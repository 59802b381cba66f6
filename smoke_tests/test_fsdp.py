"""fsdp: training that is sharded over all GPUs gives the same result with less memory on each."""

import pytest

from smoke_tests.ranks import measure_group, run_ranks

VALUES = {
    "fsdp": {
        "backend": {"expected": "nccl_on_each"},
        "gpus": {"expected": "ranks"},
        "bytes": {"type": [{"*": "number"}]},
        "errors": {"type": ["number"]},
        # FP64's rounding; with gradients of another batch, the error is about 1.
        "largest_error": {"at_most": 1e-9},
        "largest_memory_ratio": {"at_most": "share_of_memory"},
    },
}


@pytest.mark.tier(2)
@pytest.mark.limit(300)
def test_fsdp(measure):
    """Two AdamW steps equal those of one GPU with the global batch; each rank stores only its shard."""
    results = run_ranks("fsdp:steps", limit=240)

    measure_group(measure, results)
    measure("bytes", [rank["bytes"] for rank in results])
    measure("errors", [rank["error"] for rank in results])
    measure("largest_error", max(rank["error"] for rank in results))
    measure("largest_memory_ratio", max(rank["bytes"]["ratio"] for rank in results))
