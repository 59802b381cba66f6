"""Precision of the products: FP32, TF32, FP16 with a GradScaler, BF16, FP8.

| name | products | range | extra care |
| --- | --- | --- | --- |
| fp32 | 23 bits of fraction | 1e38 | TF32 is switched off, also for convolutions |
| tf32 | 10 bits | 1e38 | none: tensors stay FP32, so no memory is saved |
| fp16 | 10 bits | 65504 | gradients below 6e-8 become 0, so the loss is scaled up before the backward pass |
| bf16 | 7 bits | 1e38 | none; GPUs from compute capability 8.0 on |
| fp8 | 3 or 2 bits | 448 or 57344 | one scale for each tensor (fp8.py); the rest is bf16 |

Weights, their gradients and the optimizer's state stay FP32 in each of them: autocast casts copies.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from recipes import torch_api
from recipes.settings import Settings

HALF = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.bfloat16}


def prepare(settings: Settings, device: torch.device) -> None:
    """Set what is a setting of the process: whether FP32 products may use TF32."""
    if settings.precision == "fp8":
        torch_api.demand_fp8(device)
    torch_api.tensor_float(settings.precision == "tf32")


def autocast(settings: Settings, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """For forward pass and loss only: the backward pass repeats the dtypes of the forward pass by itself."""
    half = HALF.get(settings.precision)
    return torch.autocast(device.type, dtype=half) if half else contextlib.nullcontext()


def scaler(settings: Settings, device: torch.device) -> Any:
    """A GradScaler that does nothing unless FP16 is used, so that the loop has no branches.

    The first factor needs no tuning: it is halved whenever a gradient overflows, and that step is left out.
    """
    used = settings.precision == "fp16"
    if used and settings.parallel == "fsdp1":  # a gradient may overflow in another process's part
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        return ShardedGradScaler(init_scale=settings.init_scale)
    return torch_api.grad_scaler(device.type, init_scale=settings.init_scale, enabled=used)
