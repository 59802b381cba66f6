"""Count the wrong elements of broadcast, all-gather, reduce-scatter, send and receive."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from smoke_tests.workers.all_reduce import about

COUNT = (1 << 20) + 3  # elements of each rank: many, and not a multiple of a power of two


def exact(rank: int, world: int) -> dict[str, Any]:
    """The numbers of wrong elements; for broadcast, one number for each sending rank."""
    return about(rank) | {
        "broadcast": [_broadcast(source, rank, world) for source in range(world)],
        "all_gather": _all_gather(rank, world),
        "reduce_scatter": _reduce_scatter(rank, world),
        "ring": _ring(rank, world),
    }


def _broadcast(source: int, rank: int, world: int) -> int:
    tensor = _of(rank, world)
    dist.broadcast(tensor, src=source)
    return _wrong(tensor, _of(source, world))


def _all_gather(rank: int, world: int) -> int:
    gathered = torch.zeros(world * COUNT, dtype=torch.int64, device="cuda")
    dist.all_gather_into_tensor(gathered, _of(rank, world))
    return _wrong(gathered, torch.cat([_of(other, world) for other in range(world)]))


def _reduce_scatter(rank: int, world: int) -> int:
    """Each rank sends blocks: block b, whose sum rank b gets, is b + 1 times the sender's numbers."""
    blocks = torch.cat([_of(rank, world) * (block + 1) for block in range(world)])
    received = torch.zeros(COUNT, dtype=torch.int64, device="cuda")
    dist.reduce_scatter_tensor(received, blocks)
    return _wrong(received, sum(_of(other, world) for other in range(world)) * (rank + 1))


def _ring(rank: int, world: int) -> int:
    """Each rank sends to the next and receives from the previous one, at the same time."""
    before, after = (rank - 1) % world, (rank + 1) % world
    sent, received = _of(rank, world), torch.zeros(COUNT, dtype=torch.int64, device="cuda")
    both = [dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, received, before)]
    for request in dist.batch_isend_irecv(both):
        request.wait()
    return _wrong(received, _of(before, world))


def _of(rank: int, world: int) -> torch.Tensor:
    """Different numbers, which no other rank sends."""
    return torch.arange(COUNT, device="cuda") * world + rank


def _wrong(found: torch.Tensor, expected: Any) -> int:
    return int((found != expected).sum())
