"""What to monitor while a model trains: loss, NaN, the scaler's factor, memory, speed."""

from __future__ import annotations

import itertools
import math
import time
from typing import Any

import torch

GIB = 1 << 30


class Watch:
    """Counts steps. Reading a value of the GPU waits for it, so only every so many steps one is read."""

    def __init__(self, *, device: torch.device, every: int, warm_up: int, samples: int, loud: bool) -> None:
        self.device, self.every, self.warm_up, self.samples = device, every, warm_up, samples
        self.loud = loud  # one process prints
        self.losses: list[torch.Tensor] = []
        self.began, self.timed = time.perf_counter(), 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def step(self, number: int, loss: torch.Tensor, scaler: Any) -> None:
        """Note *loss* of step *number*, which counts from 1.

        :raises FloatingPointError: the loss is NaN or infinite, or no scale is small enough for gradients.
        """
        self.losses.append(loss.detach())
        self.timed += 1
        if len(self.losses) <= self.warm_up:  # libraries load, memory is allocated, code is compiled
            self._wait()
            self.began, self.timed = time.perf_counter(), 0
        if number % self.every == 0:
            value, scale = loss.item(), scaler.get_scale()
            if self.loud:
                speed = f"{self.speed():.0f} samples/s"
                print(f"step {number:5}  loss {value:.4f}  scale {scale:g}  {self._memory()}{speed}")
            if not math.isfinite(value):
                raise FloatingPointError(f"the loss is {value} at step {number}: lower the rate, or use bf16")
            if scale < 1:
                raise FloatingPointError(
                    f"the scale fell to {scale:g} at step {number}: every gradient overflows"
                )

    def speed(self) -> float:
        """Samples a second of all processes, since the warm-up; 0 if nothing was timed."""
        self._wait()  # the GPU still works when Python continues: without waiting only the launches are timed
        return self.samples * self.timed / (time.perf_counter() - self.began) if self.timed else 0.0

    def values(self, scaler: Any) -> dict[str, Any]:
        """The results of the run."""
        on_gpu = self.device.type == "cuda"
        return {
            "samples_per_s": self.speed(),
            "timed_steps": self.timed,
            "peak_bytes": torch.cuda.max_memory_allocated(self.device) if on_gpu else None,
            "reserved_bytes": torch.cuda.max_memory_reserved(self.device) if on_gpu else None,
            "scale": scaler.get_scale() if scaler.is_enabled() else None,
            "losses": list(itertools.takewhile(math.isfinite, map(float, self.losses))),
        }

    def _memory(self) -> str:
        if self.device.type != "cuda":
            return ""
        return f"{torch.cuda.max_memory_allocated(self.device) / GIB:.2f} GiB  "

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
