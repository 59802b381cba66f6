"""A fine-tuning step at each precision, and what is measured of it. Imports torch.

One `Training` lives at a time: how FP32 products are taken is a setting of the whole process.
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

LEARNING_RATE = 2e-5  # as BERT is fine-tuned, with its rise and fall (see `rates`)
WARM_UP = 0.1  # of the steps


class Precision(NamedTuple):
    """How products are taken: what autocast turns them into, and whether FP32 ones may use TF32."""

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
        self.logits = ""  # what the last ones were, and where

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
    """A Training on the GPU, which finds its memory empty and leaves it so."""
    _clear()
    one = Training(model, precision)
    try:
        yield one
    finally:
        vars(one).clear()  # the name in the caller's block outlives it
        _clear()


def step_times(
    one: Training, words: torch.Tensor, classes: torch.Tensor, *, warm: int, steps: int
) -> list[float]:
    """Milliseconds of each of *steps* on the same batch, by the GPU's own clock, after *warm* others."""
    words, classes = words.to(one.device), classes.to(one.device)
    torch.cuda.reset_peak_memory_stats()
    for _ in range(warm):
        one.step(words, classes)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    marks[0].record()
    for mark in marks[1:]:
        one.step(words, classes)
        mark.record()
    torch.cuda.synchronize()
    return [figures(before.elapsed_time(after)) for before, after in itertools.pairwise(marks)]


def fits(one: Training, words: torch.Tensor, classes: torch.Tensor) -> bool:
    """Whether two steps in a row on this batch find the memory they need, with no block kept from before."""
    torch.cuda.empty_cache()
    try:
        for _ in range(2):
            one.step(words, classes)
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        return False
    finally:
        one.optimizer.zero_grad(set_to_none=True)
    return True


def losses(one: Training, words: torch.Tensor, classes: torch.Tensor, *, steps: int) -> list[float]:
    """The loss before each of *steps*, each with its own part of the sentences."""
    found = []
    for rate, *batch in zip(rates(steps), words.chunk(steps), classes.chunk(steps), strict=True):
        for group in one.optimizer.param_groups:
            group["lr"] = rate
        found.append(one.step(*batch))
    return [figures(value) for value in torch.stack(found).tolist()]


def rates(steps: int) -> list[float]:
    """Up from nothing, then down to it. AdamW's first steps move each weight as far as they may, whatever its
    gradient; at the full rate they would carry random weights so far that the loss rises."""
    top = WARM_UP * steps
    return [LEARNING_RATE * min((at + 1) / top, (steps - at) / (steps - top)) for at in range(steps)]


def product_error(precision: str) -> float:
    """How far FP32's products are from FP64's, relative: about 1e-6, with TF32 about 1e-4."""
    tensor_float(PRECISIONS[precision].tf32)
    torch.manual_seed(0)
    left, right = (torch.randn(1024, 1024, device="cuda") for _ in range(2))
    return relative_error(left @ right, left.double() @ right.double())


@contextlib.contextmanager
def memory_limit(limit: int) -> Iterator[None]:
    """This process may hold at most *limit* bytes of the GPU's memory, as torch counts them."""
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / torch.cuda.mem_get_info()[1]))
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def _clear() -> None:
    """Nothing unused stays: neither objects that refer to each other nor blocks kept for later."""
    gc.collect()
    torch.cuda.empty_cache()
