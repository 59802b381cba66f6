"""Run and measure a fine-tuning step at each precision. Imports torch.

Only one `Training` may exist at a time: the precision of FP32 products is a setting of the process.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from smoke_tests.closeness import relative_error
from smoke_tests.curves import figures
from smoke_tests.torch_api import grad_scaler, tensor_float

LEARNING_RATE = 2e-5  # as for BERT's fine-tuning, with the same rise and fall (see `rates`)
WARM_UP = 0.1  # of the steps


class Precision(NamedTuple):
    """The precision of products: the dtype of autocast, and whether FP32 products may use TF32."""

    half: torch.dtype | None
    tf32: bool


PRECISIONS = {
    "fp32": Precision(None, False),
    "tf32": Precision(None, True),
    "fp16": Precision(torch.float16, False),
    "bf16": Precision(torch.bfloat16, False),
}


class Training:
    """A copy of *model* on *device*, with AdamW and, for FP16, a GradScaler."""

    def __init__(self, model: nn.Module, precision: str, device: str = "cuda") -> None:
        self.half, tf32 = PRECISIONS[precision]
        tensor_float(tf32)
        self.device = device
        self.model = copy.deepcopy(model).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        self.scaler = grad_scaler() if self.half is torch.float16 else None
        self.logits = ""  # dtype and device of the last logits

    def step(self, words: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        """Forward, backward, AdamW; the loss before it, still on the device."""
        words, classes = words.to(self.device), classes.to(self.device)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device, dtype=self.half) if self.half else contextlib.nullcontext():
            logits = self.model(words)
            loss = functional.cross_entropy(logits, classes)
        self.logits = f"{logits.dtype} on {logits.device.type}"
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss.detach()


@contextlib.contextmanager
def training(model: nn.Module, precision: str) -> Iterator[Training]:
    """A Training on the GPU, whose memory is empty before and after."""
    _clear()
    trained = Training(model, precision)
    try:
        yield trained
    finally:
        vars(trained).clear()  # because the caller's variable outlives the block
        _clear()


def step_times(
    trained: Training, words: torch.Tensor, classes: torch.Tensor, *, warm: int, steps: int
) -> list[float]:
    """The milliseconds of each of *steps* steps on the same batch, by the GPU's clock, after *warm* steps."""
    words, classes = words.to(trained.device), classes.to(trained.device)
    torch.cuda.reset_peak_memory_stats()
    for _ in range(warm):
        trained.step(words, classes)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    marks[0].record()
    for mark in marks[1:]:
        trained.step(words, classes)
        mark.record()
    torch.cuda.synchronize()
    return [figures(before.elapsed_time(after)) for before, after in itertools.pairwise(marks)]


def fits(trained: Training, words: torch.Tensor, classes: torch.Tensor) -> bool:
    """Whether two steps on this batch fit into the memory, with an empty cache of blocks."""
    torch.cuda.empty_cache()
    try:
        for _ in range(2):
            trained.step(words, classes)
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        return False
    finally:
        trained.optimizer.zero_grad(set_to_none=True)
    return True


def losses(trained: Training, words: torch.Tensor, classes: torch.Tensor, *, steps: int) -> list[float]:
    """The loss before each of *steps*; each step uses another part of the sentences."""
    found = []
    for rate, *batch in zip(rates(steps), words.chunk(steps), classes.chunk(steps), strict=True):
        for group in trained.optimizer.param_groups:
            group["lr"] = rate
        found.append(trained.step(*batch))
    return [figures(value) for value in torch.stack(found).tolist()]


def rates(steps: int) -> list[float]:
    """The rate of each step: it rises from 0, then falls to 0. AdamW's first steps move each weight by the
    whole rate, even if the gradient is small, so that the loss would rise with the full rate."""
    top = WARM_UP * steps
    return [LEARNING_RATE * min((at + 1) / top, (steps - at) / (steps - top)) for at in range(steps)]


def product_error(precision: str) -> float:
    """The relative error of FP32 products against FP64: about 1e-6, with TF32 about 1e-4."""
    tensor_float(PRECISIONS[precision].tf32)
    torch.manual_seed(0)
    left, right = (torch.randn(1024, 1024, device="cuda") for _ in range(2))
    return relative_error(left @ right, left.double() @ right.double())


@contextlib.contextmanager
def memory_limit(limit: int) -> Iterator[None]:
    """Limit the GPU memory of this process to *limit* bytes, as torch counts them."""
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / torch.cuda.mem_get_info()[1]))
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def _clear() -> None:
    """Free unused memory: reference cycles and cached blocks."""
    gc.collect()
    torch.cuda.empty_cache()
