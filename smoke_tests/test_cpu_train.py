"""cpu-train: a network learns on the CPU, fed by DataLoader workers through shared memory."""

import os

import pytest

from smoke_tests.rows import Rows

VALUES = {
    "cpu-train": {
        "loss": {"type": ["number"]},
        "loss_ratio": {"at_most": 0.1},
        "least_moved_weight": {"at_least": 0.0001},
        "threads": {"type": "integer"},
        "loader_workers": {"equals": 2},
        "loader_batches_shared": {"equals": 8},
        "loader_exact": {"equals": True},
    },
}


@pytest.mark.tier(0)
@pytest.mark.limit(300)
def test_cpu_train(measure):
    """The weights change, the loss falls tenfold, and each batch arrives unchanged from another process."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    torch.manual_seed(0)
    rows, width, steps = 512, 16, 200
    inputs = torch.randn(rows, width)
    targets = inputs @ torch.randn(width, 1)
    model = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 1))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    moved = [float((now - then).abs().max()) for now, then in zip(model.parameters(), before)]  # noqa: B905

    loader = DataLoader(Rows(inputs), batch_size=64, num_workers=2)
    batches, workers, shared = [], set(), 0
    for batch, pids in loader:
        batches.append(batch)
        workers |= set(pids.tolist())
        shared += batch.is_shared()

    measure("loss", [losses[0], losses[-1]])
    measure("loss_ratio", losses[-1] / losses[0])
    measure("least_moved_weight", min(moved))
    measure("threads", torch.get_num_threads())
    measure("loader_workers", len(workers - {os.getpid()}))
    measure("loader_batches_shared", shared)
    measure("loader_exact", bool(torch.equal(torch.cat(batches), inputs)))
