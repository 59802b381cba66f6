"""Two ways to keep fewer activations on the GPU: compute them again, or move them to the host."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from recipes.settings import Settings

SMALLEST = 1 << 20  # bytes; a smaller tensor is not worth a copy over PCIe


def block_runner(settings: Settings) -> Callable[[nn.Module, torch.Tensor], torch.Tensor]:
    """How a block is run: as it is, or so that only its input is kept and the rest is computed twice."""
    return _again if settings.checkpointing else _plain


def _plain(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return block(x)


def _again(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """use_reentrant=False: the other kind needs an input with requires_grad, and forgets keyword arguments.

    A block is run twice. Dropout repeats its mask; BatchNorm updates its running statistics twice.
    """
    return checkpoint(block, x, use_reentrant=False)


def offloading(settings: Settings, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Keep what the forward pass saves in the host's memory; used around the forward pass, not the backward.

    torch's own save_on_cpu copies everything, also the weights, which stay on the GPU anyway.
    """
    if not settings.offload:
        return contextlib.nullcontext()
    pin = device.type == "cuda"

    def pack(tensor: torch.Tensor) -> Any:
        if isinstance(tensor, nn.Parameter) or tensor.numel() * tensor.element_size() < SMALLEST:
            return tensor
        # Not `.cpu()`: page-locked memory lets the copy run while the GPU goes on. The GPU's allocator reuses
        # the block only for later work of the same stream, so nothing is overwritten before it is copied.
        host = torch.empty_like(tensor, device="cpu", pin_memory=pin)
        return tensor.device, host.copy_(tensor, non_blocking=True)

    def unpack(packed: Any) -> torch.Tensor:
        return packed if isinstance(packed, torch.Tensor) else packed[1].to(packed[0], non_blocking=True)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
