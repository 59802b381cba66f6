"""Two small models for the checks of training. Imports torch; import it inside a check.

Everything is created on "cuda", so it needs a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

ROWS, WIDTH = 256, 64  # rows and columns of the regression
# A block of the tower has 9 * 4 MiB of FP32 activations for the backward pass, and half a MiB of weights. All
# blocks have 288 MiB, far more than cuBLAS's workspace (32 MiB on Hopper) and the allocator's rounding (2
# MiB).
DEPTH, _TOWER_ROWS, _TOWER_WIDTH = 8, 16384, 64


class Regression:
    """A perceptron, and rows to learn, with the same numbers each time.

    The activation is smooth: with ReLU, rounding to FP16 would move some inputs across zero, where the
    derivative jumps.
    """

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).cuda()
        self.inputs, self.targets = torch.randn(2, ROWS, WIDTH, device="cuda")
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)

    def loss(self, rows: slice = slice(None), *, half: bool = True) -> torch.Tensor:
        """The mean square error over *rows*; with *half* under autocast to FP16."""
        with torch.autocast("cuda", dtype=torch.float16, enabled=half):
            return functional.mse_loss(self.model(self.inputs[rows]), self.targets[rows])

    def exact_gradient(self) -> torch.Tensor:
        """All gradients as one vector, in FP32 without autocast; the model has none afterwards."""
        self.loss(half=False).backward()
        found = gradient(self.model)
        self.optimizer.zero_grad()
        return found


def scaled_step(scaler: Any, *tasks: Regression, spoil: Callable[[], None] = lambda: None) -> None:
    """Make a step of each task under one GradScaler; call *spoil* before the scaler checks the gradients."""
    for task in tasks:
        task.optimizer.zero_grad()
        scaler.scale(task.loss()).backward()
    spoil()
    for task in tasks:
        scaler.step(task.optimizer)
    scaler.update()


class Block(nn.Module):
    """The feed-forward half of a transformer layer, without its norm."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.wide = nn.Linear(_TOWER_WIDTH, 4 * _TOWER_WIDTH)
        self.narrow = nn.Linear(4 * _TOWER_WIDTH, _TOWER_WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x plus the result of two layers."""
        return x + self.dropout(self.narrow(functional.gelu(self.wide(x))))


def tower(dropout: float = 0.0) -> tuple[nn.Sequential, torch.Tensor]:
    """A model whose activations take most of its memory, and its input; the same numbers each time."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(dropout) for _ in range(DEPTH))).cuda()
    return model, torch.randn(_TOWER_ROWS, _TOWER_WIDTH, device="cuda")


def gradient(model: nn.Module) -> torch.Tensor:
    """A copy of all gradients of *model* as one vector; a parameter without a gradient is an error."""
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def weights(model: nn.Module) -> torch.Tensor:
    """A copy of all weights of *model* as one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def device_of(model: nn.Module) -> str:
    """The device type of *model*."""
    return "+".join(sorted({parameter.device.type for parameter in model.parameters()}))


def peak(step: Callable[[], Any]) -> int:
    """The peak memory of *step* in bytes, above the memory before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - held
