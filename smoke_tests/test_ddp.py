"""ddp, ddp-amp: ranks with their own rows make a joint step, and skip one together."""

from itertools import pairwise

import pytest

from smoke_tests.ranks import gpus_of_torch, measure_group, run_ranks


@pytest.mark.tier(2)
@pytest.mark.limit(300)
def test_ddp(measure):
    """Two steps equal those of one process with the joint batch, with the same bits on every rank."""
    world = gpus_of_torch()
    seen = run_ranks("ddp:joint_steps", limit=240)
    first = seen[0]["digests"]

    measure_group(measure, seen)
    measure("weights", [rank["digests"] for rank in seen], equals=[first] * world)
    measure("different_weights", len(set(first)), equals=3)  # at the start, after one step, after two
    # FP64's rounding, and how little of each weight a step is: seen 1e-13. A rank's own rows alone: about 1.
    for step, error in enumerate(seen[0]["errors"], start=1):
        measure(f"error_after_step_{step}", error, at_most=1e-10)


@pytest.mark.tier(2)
@pytest.mark.limit(300)
def test_ddp_amp(measure):
    """An inf on the last rank: all skip that step, bit for bit, and every scaler halves its scale."""
    world = gpus_of_torch()
    seen = run_ranks("ddp:scaled_steps", limit=240)
    first = seen[0]["digests"]

    measure_group(measure, seen)
    measure("enabled", [rank["enabled"] for rank in seen], equals=[True] * world)
    scales = [65536.0, 65536.0, 32768.0, 32768.0]  # at the start, and after each step
    measure("scales", [rank["scales"] for rank in seen], equals=[scales] * world)
    measure("weights", [rank["digests"] for rank in seen], equals=[first] * world)
    taken = [[before != after for before, after in pairwise(rank["digests"])] for rank in seen]
    measure("steps_taken", taken, equals=[[True, False, True]] * world)
