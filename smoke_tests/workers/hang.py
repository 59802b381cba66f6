"""A collective that one rank never joins."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

PATIENCE = 10  # seconds for a collective


def met(rank: int, backend: str, device: int) -> str:
    """The message of a rank after all have joined."""
    return f"rank {rank} has met the others by {backend} on GPU {device}"


def absent(rank: int, world: int) -> dict[str, Any]:
    """All ranks join a group with a short timeout; then the last one stays away."""
    dist.all_reduce(torch.ones(1, device="cuda"))  # however long they take to come
    group = dist.new_group(timeout=timedelta(seconds=PATIENCE))
    sums = torch.ones(1, device="cuda")
    dist.all_reduce(sums, group=group)
    torch.cuda.synchronize()
    print(met(rank, dist.get_backend(group), torch.cuda.current_device()), flush=True)
    if rank == world - 1:
        time.sleep(3600)  # it is ended from outside
    dist.all_reduce(sums, group=group)
    torch.cuda.synchronize()
    time.sleep(60)  # NCCL's watchdog may let this thread go a moment before it ends the process
    return {"came back with": float(sums)}
