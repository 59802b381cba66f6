"""A collective that one rank never joins."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = 10  # seconds for a collective


def joined(rank: int, backend: str, device: int) -> str:
    """The message that a rank prints after all have joined."""
    return f"rank {rank} has joined the others over {backend} on GPU {device}"


def absent(rank: int, world: int) -> dict[str, Any]:
    """All ranks join a group with a short timeout; then the last rank does not join a collective."""
    dist.all_reduce(torch.ones(1, device="cuda"))  # with the default timeout: ranks may start late
    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT))
    sums = torch.ones(1, device="cuda")
    dist.all_reduce(sums, group=group)
    torch.cuda.synchronize()
    print(joined(rank, dist.get_backend(group), torch.cuda.current_device()), flush=True)
    if rank == world - 1:
        time.sleep(3600)  # until it is stopped from outside
    dist.all_reduce(sums, group=group)
    torch.cuda.synchronize()
    time.sleep(60)  # NCCL's watchdog may release this thread a moment before it ends the process
    return {"result": float(sums)}
