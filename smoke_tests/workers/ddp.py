"""DistributedDataParallel: a step on the rows of all ranks, and a step that all ranks skip."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from smoke_tests.closeness import relative_error
from smoke_tests.torch_api import grad_scaler
from smoke_tests.workers.all_reduce import about
from smoke_tests.workers.weights import digest, flat

ROWS, WIDTH, OUT = 16, 512, 64  # rows of each rank
STEPS = 2


def joint_steps(rank: int, world: int) -> dict[str, Any]:
    """Every rank's weights after each step, and on rank 0 their distance from those of one process.

    In FP64 only rounding differs, so the bound is too small for an error such as TF32's.
    """
    torch.manual_seed(rank)  # different weights on each rank, because DDP must distribute those of rank 0
    model = _model().double().cuda()
    start, alone = flat(model.parameters()), copy.deepcopy(model)
    model = DistributedDataParallel(model, device_ids=[rank])
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9) for one in (model, alone)]
    digests, errors = [digest(model)], []
    for step in range(STEPS):
        rows, targets = (one.double().cuda() for one in _batch(step, world))
        own = slice(rank * ROWS, (rank + 1) * ROWS)
        _step(model, optimizers[0], rows[own], targets[own])
        digests.append(digest(model))
        if rank == 0:  # DDP started from the weights of rank 0
            _step(alone, optimizers[1], rows, targets)
            moved, expected = flat(model.parameters()) - start, flat(alone.parameters()) - start
            errors.append(relative_error(moved, expected))
    return about(rank) | {"digests": digests, "errors": errors}


def scaled_steps(rank: int, world: int) -> dict[str, Any]:
    """Three steps under AMP, each rank with a scaler; in the second step the last rank's loss is inf."""
    torch.manual_seed(0)
    model = DistributedDataParallel(_model().cuda(), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = grad_scaler()
    digests, scales = [digest(model)], [scaler.get_scale()]
    for step in range(3):
        rows, targets = (one[rank * ROWS : (rank + 1) * ROWS].cuda() for one in _batch(step, world))
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(rows), targets)
        if step == 1 and rank == world - 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        digests.append(digest(model))
        scales.append(scaler.get_scale())
    return about(rank) | {"enabled": scaler.is_enabled(), "digests": digests, "scales": scales}


def _model() -> nn.Module:
    """Some megabytes in FP64, so that DDP sends more than one bucket."""
    layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, OUT)]
    return nn.Sequential(*layers)


def _batch(step: int, world: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The global batch of a step, the same on every rank; each rank uses its own rows."""
    seeded = torch.Generator().manual_seed(1000 + step)
    rows = torch.randn(world * ROWS, WIDTH, generator=seeded)
    return rows, torch.randn(world * ROWS, OUT, generator=seeded)


def _step(model: nn.Module, optimizer: Any, rows: torch.Tensor, targets: torch.Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(rows), targets).backward()
    optimizer.step()
