"""ddp, ddp-amp: ranks with different rows make a step together, and skip a step together."""

from itertools import pairwise

import pytest

from smoke_tests.ranks import measure_group, run_ranks

VALUES = {
    "ddp": {
        "backend": {"expected": "nccl_on_each"},
        "gpus": {"expected": "ranks"},
        "weights": {"type": [["string"]]},
        "different_ranks": {"equals": 1},
        "different_weights": {"equals": 3},  # at the start, after one step, after two
        # FP64's rounding relative to the size of a step: 1e-13 was measured. With one rank's rows alone,
        # about 1.
        "error_after_step_1": {"at_most": 1e-10},
        "error_after_step_2": {"at_most": 1e-10},
    },
    "ddp-amp": {
        "backend": {"expected": "nccl_on_each"},
        "gpus": {"expected": "ranks"},
        "enabled": {"expected": "true_on_each"},
        # The values of all ranks, without repetitions.
        "scales": {"equals": [[65536.0, 65536.0, 32768.0, 32768.0]]},  # at the start, and after each step
        "steps_taken": {"equals": [[True, False, True]]},
        "weights": {"type": [["string"]]},
        "different_ranks": {"equals": 1},
    },
}


@pytest.mark.tier(2)
@pytest.mark.limit(300)
def test_ddp(measure):
    """Two steps equal those of one process with the global batch, and all ranks have the same bits."""
    results = run_ranks("ddp:joint_steps", limit=240)

    measure_group(measure, results)
    _measure_weights(measure, results)
    measure("different_weights", len(set(results[0]["digests"])))
    for step, error in enumerate(results[0]["errors"], start=1):
        measure(f"error_after_step_{step}", error)


@pytest.mark.tier(2)
@pytest.mark.limit(300)
def test_ddp_amp(measure):
    """An inf on the last rank: all skip that step, bit for bit, and every scaler halves its scale."""
    results = run_ranks("ddp:scaled_steps", limit=240)

    measure_group(measure, results)
    measure("enabled", [rank["enabled"] for rank in results])
    measure("scales", _different(rank["scales"] for rank in results))
    _measure_weights(measure, results)
    taken = [[before != after for before, after in pairwise(rank["digests"])] for rank in results]
    measure("steps_taken", _different(taken))


def _measure_weights(measure, results):
    """The digests of the weights on each rank, and how many ranks differ."""
    digests = [rank["digests"] for rank in results]
    measure("weights", digests)
    measure("different_ranks", len(_different(digests)))


def _different(lists):
    """*lists* without repetitions, sorted."""
    return sorted(map(list, {tuple(values) for values in lists}))
