"""FullyShardedDataParallel: each rank holds its shard of weights and optimizer; the steps are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from smoke_tests.closeness import ratio, relative_error
from smoke_tests.workers.all_reduce import about
from smoke_tests.workers.weights import flat

LAYERS, WIDTH = 4, 2048  # in FP64: 128 MiB of weights, 128 MiB of gradients, 256 MiB of AdamW's state
ROWS = 4  # of each rank
STEPS = 2


def steps(rank: int, world: int) -> dict[str, Any]:
    """Two steps, first unsharded with the joint batch, then sharded, with the bytes that each run held.

    In FP64, as in ddp, and because AdamW's quotient would amplify FP32's rounding errors.
    """
    square = torch.ones(8, 8, dtype=torch.float64, device="cuda")
    square @ square  # cuBLAS allocates memory at its first call
    start = flat(_model().parameters())
    expected, whole = _train(_model().cuda(), slice(None), world, _weights)
    own = slice(rank * ROWS, (rank + 1) * ROWS)
    found, part = _train(_sharded(rank), own, world, _gathered)
    return about(rank) | {
        "error": relative_error(found - start, expected - start),
        "bytes": {"unsharded": whole, "sharded": part, "ratio": ratio(part, whole)},
    }


def _train(
    model: nn.Module, own: slice, world: int, weights: Callable[[nn.Module], torch.Tensor]
) -> tuple[torch.Tensor, int]:
    """The weights after the steps, and the bytes of weights, gradients and optimizer on this rank."""
    # Not foreach, because torch 2.0 omits steps if the last tensor of a list belongs to another rank.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    for step in range(STEPS):
        rows, targets = (one[own].double().cuda() for one in _batch(step, world))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), targets).backward()
        optimizer.step()
    torch.cuda.synchronize()
    return weights(model), torch.cuda.memory_allocated()


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS))).double()


def _sharded(rank: int) -> nn.Module:
    """Each layer is an FSDP unit, as usual, so that only one layer at a time is gathered."""
    options: dict[str, Any] = {"device_id": rank, "use_orig_params": True}
    units = [FullyShardedDataParallel(layer, **options) for layer in _model()]
    return FullyShardedDataParallel(nn.Sequential(*units), **options)


def _weights(model: nn.Module) -> torch.Tensor:
    return flat(model.parameters())


def _gathered(model: nn.Module) -> torch.Tensor:
    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        return flat(model.parameters())


def _batch(step: int, world: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The joint batch of a step, the same on every rank; each rank uses its own rows."""
    seeded = torch.Generator().manual_seed(1000 + step)
    return tuple(torch.randn(world * ROWS, WIDTH, generator=seeded) for _ in range(2))
