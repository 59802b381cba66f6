"""hang: if a rank does not join a collective, the others fail with a timeout error."""

import re

import pytest

from smoke_tests.ranks import gpus_of_torch, rank_endings

# torch's own defaults from 2.2 on, said outright, and 2.0's and 2.1's name for them: NCCL's watchdog ends the
# process (3: at once; the older ones know only 1). And no minutes of debug dumps before that.
WATCHDOG = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    "NCCL_ASYNC_ERROR_HANDLING": "1",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "NCCL_BLOCKING_WAIT": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}


@pytest.mark.tier(2)
@pytest.mark.limit(180)
def test_hang(measure):
    """The last rank never joins a collective: the others end by themselves in time, with the reason."""
    from smoke_tests.workers.hang import PATIENCE, met

    world = gpus_of_torch()
    seen = rank_endings("hang:absent", limit=90, env=WATCHDOG)
    waiting = seen[:-1]

    measure("patience", PATIENCE)
    measure("seconds", [rank.seconds for rank in seen])
    measure("exit_codes", [rank.code for rank in seen])
    said = [line for rank in seen for line in rank.output.splitlines() if line.startswith("rank ")]
    measure("met", said, equals=[met(rank, "nccl", rank) for rank in range(world)])
    measure("ended_by_itself", [rank.code is not None for rank in waiting], equals=[True] * (world - 1))
    measure("ended_in_error", [rank.code != 0 for rank in waiting], equals=[True] * (world - 1))
    told = [bool(re.search(r"timed out|timing out", rank.output, re.I)) for rank in waiting]
    measure("told_timeout", told, equals=[True] * (world - 1))
