"""hang: if a rank does not join a collective, the others fail with a timeout error."""

import re

import pytest

from smoke_tests.ranks import rank_endings

# The defaults of torch 2.2 and newer, and their names in 2.0 and 2.1: NCCL's watchdog ends the process (3: at
# once; older releases know only 1), without first writing debug dumps for minutes.
WATCHDOG = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    "NCCL_ASYNC_ERROR_HANDLING": "1",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "NCCL_BLOCKING_WAIT": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}

VALUES = {
    "hang": {
        "timeout": {"type": "integer"},
        "seconds": {"type": ["number"]},
        "exit_codes": {"type": "any"},
        "joined": {"expected": "true_on_each"},
        "ended_by_itself": {"expected": "true_on_each_but_the_last"},
        "ended_in_error": {"expected": "true_on_each_but_the_last"},
        "timeout_reported": {"expected": "true_on_each_but_the_last"},
    },
}


@pytest.mark.tier(2)
@pytest.mark.limit(240)
def test_hang(measure):
    """The last rank never joins a collective: the others end in time, without a signal from outside, with the
    reason."""
    from smoke_tests.workers.hang import TIMEOUT, joined

    # The others end after 14 s, since torch 2.8 sometimes after 82 s; on a busy host later.
    ranks = rank_endings("hang:absent", limit=180, env=WATCHDOG)
    waiting = ranks[:-1]

    measure("timeout", TIMEOUT)
    measure("seconds", [rank.seconds for rank in ranks])
    measure("exit_codes", [rank.code for rank in ranks])
    measure("joined", [joined(rank.rank, "nccl", rank.rank) in rank.output.splitlines() for rank in ranks])
    measure("ended_by_itself", [rank.code is not None for rank in waiting])
    measure("ended_in_error", [rank.code != 0 for rank in waiting])
    reported = [bool(re.search(r"timed out|timing out", rank.output, re.I)) for rank in waiting]
    measure("timeout_reported", reported)
