"""The kernels that a call launches on the GPU, and the operators that it calls. Imports torch.

torch.profiler records the operators itself, and the kernels by CUPTI, which is in every CUDA build of torch.
There is no fallback without CUPTI: a check that uses this module also traces a call with known kernels, and
fails if they are missing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

# The profiler drops kernels that lie outside its time window, and the clocks of CPU and GPU differ slightly.
_MARGIN = 0.05  # seconds
# torch's kernels that only move or set values: a product may need such a kernel for its bias, compiled or
# not.
_MOVES = ("copy_kernel", "FillFunctor")


class Launches(NamedTuple):
    """What a call did, in the order of the trace."""

    kernels: tuple[str, ...]  # a name for each launch
    operators: frozenset[str]  # of ATen, without overloads: aten::mul

    @property
    def triton(self) -> list[str]:
        """The launches of kernels with the prefix that Inductor gives to all of its Triton kernels."""
        return [name for name in self.kernels if name.startswith("triton_")]

    @property
    def aten(self) -> list[str]:
        """The launches of torch's precompiled kernels that compute; kernels of products are cuBLAS's."""
        own = [name for name in self.kernels if "at::native" in name or "2at6native" in name]
        return [name for name in own if not any(move in name for move in _MOVES)]


def launched(call: Callable[[], Any], folder: Path) -> Launches:
    """Run *call* under the profiler; the trace is written into *folder*."""
    path = folder / "trace.json"
    with _profiler():
        torch.ones(1, device="cuda")  # CUPTI starts with the first trace, in which kernels may be missing
        torch.cuda.synchronize()
    with _profiler() as trace:
        time.sleep(_MARGIN)
        call()
        torch.cuda.synchronize()
        time.sleep(_MARGIN)
    trace.export_chrome_trace(str(path))
    return parse(json.loads(path.read_text("utf-8", "replace"))["traceEvents"])


def parse(events: Sequence[Mapping[str, Any]]) -> Launches:
    """Read the events of a Chrome trace."""
    complete = sorted(
        (event for event in events if event.get("ph") == "X"), key=lambda event: float(event["ts"])
    )
    named = [(str(event.get("cat")).lower(), str(event.get("name"))) for event in complete]
    called = (name for category, name in named if category == "cpu_op")
    return Launches(
        kernels=tuple(name for category, name in named if category == "kernel"),
        operators=frozenset(name for name in called if name.startswith("aten::")),
    )


def _profiler() -> Any:
    return profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
