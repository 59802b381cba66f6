"""A training run that can be saved and resumed. Imports torch; import it inside a check.

The loss uses all of a run's state: dropout draws random numbers on the GPU, the data are drawn on the CPU,
the scale grows every few steps, and the learning rate changes every second step.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from smoke_tests.torch_api import grad_scaler
from smoke_tests.training import weights

HALF = 7  # steps before and after the interruption; no multiple of the scaler's interval
_ROWS, _WIDTH, _INTERVAL = 128, 64, 3


class Run:
    """A model in training, from its first step on."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        layers = [nn.Linear(_WIDTH, _WIDTH), nn.BatchNorm1d(_WIDTH), nn.GELU(), nn.Dropout(0.3)]
        self.model = nn.Sequential(*layers, nn.Linear(_WIDTH, _WIDTH)).cuda()
        fused = {"lr": 1e-2, "fused": True}
        self.optimizers = [
            torch.optim.AdamW(self.model[0].parameters(), **fused),
            torch.optim.SGD(self.model[1:].parameters(), lr=1e-2, momentum=0.9, foreach=True),
        ]
        self.schedules = [torch.optim.lr_scheduler.StepLR(one, 2, gamma=0.8) for one in self.optimizers]
        self.scaler = grad_scaler(growth_interval=_INTERVAL, init_scale=1024.0)
        self.losses: list[float] = []

    def train(self, steps: int) -> None:
        """Make *steps* steps under AMP on new random data."""
        for _ in range(steps):
            rows = torch.randn(_ROWS, _WIDTH) * random.uniform(0.5, 2.0)
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = functional.mse_loss(self.model(rows.cuda()).float(), rows.cuda().roll(1, 1))
            self.scaler.scale(loss).backward()
            for optimizer, schedule in zip(self.optimizers, self.schedules, strict=True):
                self.scaler.step(optimizer)
                schedule.step()
            self.scaler.update()
            self.losses.append(loss.item())

    def state(self) -> dict[str, Any]:
        """All state of the run, as a program saves it."""
        return {
            "model": self.model.state_dict(),
            "optimizers": [one.state_dict() for one in self.optimizers],
            "schedules": [one.state_dict() for one in self.schedules],
            "scaler": self.scaler.state_dict(),
            "cpu": torch.get_rng_state(),
            "gpu": torch.cuda.get_rng_state(),
            "python": random.getstate(),
        }

    def save(self, path: Path) -> None:
        """Save all state."""
        torch.save(self.state(), path)

    def load(self, path: Path) -> None:
        """Load what `save` has saved."""
        # On the CPU, because the states of random generators must be there.
        found = torch.load(path, map_location="cpu")
        self.model.load_state_dict(found["model"])
        for name in ("optimizers", "schedules"):
            for one, state in zip(getattr(self, name), found[name], strict=True):
                one.load_state_dict(state)
        self.scaler.load_state_dict(found["scaler"])
        torch.set_rng_state(found["cpu"])
        torch.cuda.set_rng_state(found["gpu"])
        version, numbers, gauss = found["python"]
        random.setstate((version, tuple(numbers), gauss))

    def summary(self) -> dict[str, Any]:
        """What two equal runs have in common, as JSON."""
        states = [state for one in self.optimizers for state in one.state.values()]
        values = [value for state in states for _, value in sorted(state.items()) if value is not None]
        buffers = list(self.model.buffers())
        return {
            "device": next(self.model.parameters()).device.type,
            "losses": self.losses,
            "weights": weights(self.model).cpu().tolist(),
            "buffers": [float(one.double().norm()) for one in buffers if one.dim()],
            "moments": [float(value.double().norm()) for value in values if value.dim()],
            "counts": [float(value) for value in (*values, *buffers) if not value.dim()],
            "rates": [group["lr"] for one in self.optimizers for group in one.param_groups],
            "scale": self.scaler.get_scale(),
            "growth": self.scaler.state_dict()["_growth_tracker"],
            "draws": [torch.randn(8).tolist(), torch.randn(8, device="cuda").tolist(), random.random()],
        }
