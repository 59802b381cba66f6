"""Trains a small model; the switches are the techniques of faster and smaller training.

python -m recipes.train --precision bf16 --checkpointing --accumulate 4
torchrun --nproc-per-node 2 -m recipes.train --parallel ddp --precision bf16
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
from typing import Any

import torch
from torch.nn import functional

from recipes import checkpoint, optimizers, parallel, precision
from recipes.data import batches
from recipes.memory import offloading
from recipes.model import build
from recipes.profiling import profiling
from recipes.settings import Settings, Unavailable, parse
from recipes.watch import Watch


class Training:
    """Model, optimizer and scaler of one process; a step is `backward`, then `update`."""

    def __init__(self, settings: Settings, device: torch.device, world: parallel.World) -> None:
        self.settings, self.device, self.world = settings, device, world
        precision.prepare(settings, device)
        self.model, self.called = parallel.wrap(settings, build(settings, device), device)
        self.optimizer = optimizers.make(settings, self.model.parameters(), device)
        self.scaler = precision.scaler(settings, device)

    def backward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The gradient of the mean loss of a batch, part after part; the loss, still on the device."""
        parts, total = self.settings.accumulate, torch.zeros((), device=self.device)
        pairs = list(zip(inputs.chunk(parts), targets.chunk(parts), strict=True))
        for number, (x, y) in enumerate(pairs, 1):
            # DDP decides in the forward pass whether the backward pass will reduce: both are inside.
            with parallel.syncing(self.settings, self.called, number == parts):
                with offloading(self.settings, self.device), precision.autocast(self.settings, self.device):
                    # Divided, because the gradients of the parts add up.
                    loss = functional.cross_entropy(self.called(x), y.flatten()) / parts
                self.scaler.scale(loss).backward()
            total += loss.detach()
        return total

    def update(self, step: int) -> None:
        """One step of the optimizer. `scaler.step` omits it if a gradient overflowed, and returns nothing."""
        optimizers.set_rate(self.settings, self.optimizer, step)
        if self.settings.clip:
            self.scaler.unscale_(self.optimizer)  # else the norm of scaled gradients is clipped
            parallel.clip(self.settings, self.model)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)  # frees the gradients before the next forward pass


def run(settings: Settings) -> dict[str, Any]:
    """Train, and return the results."""
    device = parallel.device_of(settings)
    world = parallel.join(settings, device)
    try:
        training = Training(settings, device, world)
        state = training.model, training.optimizer, training.scaler
        start = checkpoint.load(settings, world, *state)
        watch = Watch(
            device=device,
            every=settings.watch_every,
            warm_up=settings.warm_up,
            samples=settings.batch * world.size,
            loud=not world.rank,
        )
        loader = batches(settings, world, device, start)
        with profiling("" if world.rank else settings.profile, device) as profiled:
            for step in range(start, settings.steps):
                loss = parallel.mean(world, training.backward(*next(loader)))
                training.update(step)
                watch.step(step + 1, loss, training.scaler)
                profiled()
                due = step + 1 == settings.steps or (
                    settings.save_every and (step + 1) % settings.save_every == 0
                )
                if settings.save and due:
                    checkpoint.save(settings, world, step + 1, *state)
        return watch.values(training.scaler) | {"environment": environment(device)}
    finally:
        parallel.leave(world)


def environment(device: torch.device) -> dict[str, Any]:
    """Where the figures come from."""
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": "cpu",
        "cores": os.cpu_count(),
    }
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        found |= {
            "device": about.name,
            "memory": about.total_memory,
            "capability": [about.major, about.minor],
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    return found


def main() -> int:
    """Train by the command line. With --report also a failure is a result: its kind and its message."""
    settings = None
    try:
        settings = parse(text=__doc__)
        found = {"outcome": "measured", "message": "", **run(settings)}
    except Unavailable as error:
        found = {"outcome": "unavailable", "message": str(error)}
    except torch.cuda.OutOfMemoryError as error:
        found = {"outcome": "out of memory", "message": str(error).splitlines()[0]}
    if found["message"]:
        sys.stderr.write(f"{found['outcome']}: {found['message']}\n")
    if settings and settings.report and (found["message"] or os.environ.get("RANK", "0") == "0"):
        with open(settings.report, "w", encoding="utf-8") as file:
            json.dump({"settings": dataclasses.asdict(settings), **found}, file)
    return {"measured": 0, "unavailable": 3}.get(found["outcome"], 1)


if __name__ == "__main__":
    sys.exit(main())
