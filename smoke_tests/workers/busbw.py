"""Time an all-reduce by message size."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from smoke_tests.workers.all_reduce import about

SIZES = tuple(1024 * 4**power for power in range(11))  # bytes: 1 KiB to 1 GiB
_WARM_UP = 3
_ROUNDS = 5
_BIG = 64 << 20  # bytes; from this size on, few calls per round are precise enough


def by_size(rank: int, world: int) -> dict[str, Any]:
    """For each size the seconds of an all-reduce in each round, and the number of wrong elements."""
    buffer = torch.empty(SIZES[-1] // 4, dtype=torch.float32, device="cuda")
    parts = {str(size): buffer[: size // 4] for size in SIZES}
    wrong = {size: _wrong(part, rank, world) for size, part in parts.items()}
    buffer.zero_()  # because repeated sums of other numbers would soon be infinite
    return about(rank) | {"wrong": wrong, "seconds": {size: _rounds(part) for size, part in parts.items()}}


def _wrong(part: torch.Tensor, rank: int, world: int) -> int:
    """Check the result, because an all-reduce that does nothing is the fastest."""
    part.fill_(rank + 1)
    dist.all_reduce(part)
    return int((part != world * (world + 1) // 2).sum())


def _rounds(part: torch.Tensor) -> list[float]:
    """Time each round as nccl-tests do: many calls between two events, because a single call is mostly launch
    time."""
    turns = 5 if part.numel() * part.element_size() >= _BIG else 20
    for _ in range(_WARM_UP):
        dist.all_reduce(part)
    return [_seconds(part, turns) for _ in range(_ROUNDS)]


def _seconds(part: torch.Tensor, turns: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(turns):
        dist.all_reduce(part)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000 / turns
