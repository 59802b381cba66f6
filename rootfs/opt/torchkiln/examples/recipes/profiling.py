"""A trace of a few steps, and a snapshot of the GPU's memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import profiler

from recipes import torch_api

STEPS = 3  # after one of warm-up; a trace of a whole run is too large to be opened


@contextlib.contextmanager
def profiling(folder: str, device: torch.device) -> Iterator[Callable[[], None]]:
    """Yields what to call after each step. trace.json is for Perfetto, memory.pickle for memory_viz."""
    if not folder:
        yield lambda: None
        return
    place, on_gpu = Path(folder), device.type == "cuda"
    place.mkdir(parents=True, exist_ok=True)
    kinds = [profiler.ProfilerActivity.CPU, *([profiler.ProfilerActivity.CUDA] if on_gpu else [])]
    if on_gpu:
        torch_api.record_memory()
    with profiler.profile(
        activities=kinds,
        schedule=profiler.schedule(wait=0, warmup=1, active=STEPS, repeat=1),
        on_trace_ready=lambda trace: trace.export_chrome_trace(str(place / "trace.json")),
        record_shapes=True,
        profile_memory=True,
    ) as running:
        yield running.step
    if on_gpu:
        torch_api.write_memory(str(place / "memory.pickle"))
