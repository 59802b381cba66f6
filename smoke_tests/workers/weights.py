"""Compare weights in the checks of parallel training."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterable

import torch


def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Copies of *tensors* as one vector on the CPU."""
    return torch.cat([one.detach().flatten() for one in tensors]).cpu()


def digest(model: torch.nn.Module) -> str:
    """The first characters of a SHA-256 over every bit of the weights. (numpy may not be here.)"""
    every = flat(model.parameters())
    data = ctypes.string_at(every.data_ptr(), every.numel() * every.element_size())
    return hashlib.sha256(data).hexdigest()[:16]
