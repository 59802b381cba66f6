"""Optimizers, by the bytes that they keep for each weight besides weight and gradient.

adamw: 8 (two FP32 moments); adamw8bit: 2, with the package bitsandbytes; adafactor: almost 0 (a row and a
column for each matrix); sgd: 0, since this one has no momentum.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from recipes import torch_api
from recipes.settings import Settings, Unavailable

RATES = {"adamw": 3e-4, "adamw8bit": 3e-4, "adafactor": 1e-2, "sgd": 0.1}
RISE = 4  # steps over which the rate rises to its value


def make(
    settings: Settings, parameters: Iterable[nn.Parameter], device: torch.device
) -> torch.optim.Optimizer:
    """The optimizer of *settings* for *parameters*.

    :raises Unavailable: it needs another torch, or a package that is not installed.
    """
    name, rate = settings.optimizer, settings.rate or RATES[settings.optimizer]
    if settings.fused and (name not in ("adamw", "sgd") or device.type != "cuda"):
        raise Unavailable("--fused: only adamw and sgd on a GPU have a fused kernel")
    if name == "adamw8bit":
        return _eight_bit(parameters, rate)
    if name == "adafactor":
        return torch_api.adafactor()(parameters, lr=rate)
    # torch 2.0 with FSDP leaves steps out with foreach; fused and foreach exclude each other.
    old = torch_api.RELEASE < (2, 1) and settings.parallel == "fsdp1"
    options = {"fused": True} if settings.fused else {"foreach": False} if old else {}
    if name == "sgd" and settings.fused and torch_api.RELEASE < (2, 3):
        raise Unavailable(f"--optimizer sgd --fused: needs torch 2.3 or later; this is {torch.__version__}")
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[name]
    return kind(parameters, lr=rate, **options)


def _eight_bit(parameters: Iterable[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    try:
        import bitsandbytes
    except ImportError as error:
        raise Unavailable(
            "--optimizer adamw8bit: bitsandbytes is not installed (pip install bitsandbytes)"
        ) from error
    return bitsandbytes.optim.AdamW8bit(parameters, lr=rate)


def set_rate(settings: Settings, optimizer: torch.optim.Optimizer, step: int) -> None:
    """The rate is a function of *step* alone: nothing to save, nothing that a skipped step shifts."""
    rate = settings.rate or RATES[settings.optimizer]
    for group in optimizer.param_groups:
        group["lr"] = rate * min(1.0, (step + 1) / RISE)
