"""A linear layer whose three products are of 8-bit floats, each tensor with one scale of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from recipes.torch_api import scaled_mm

LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}


def quantised(tensor: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """*tensor* in 8 bits, its largest value at the end of the range; and the factor that gives it back."""
    largest = tensor.detach().abs().amax().float().clamp(min=1e-12)
    scale = LARGEST[kind] / largest
    return (tensor.float() * scale).to(getattr(torch, kind)).contiguous(), scale.reciprocal()


def by_columns(matrix: torch.Tensor) -> torch.Tensor:
    """The same matrix, column-major, as the kernel expects its right operand."""
    return matrix.t().contiguous().t()


class Product(torch.autograd.Function):
    """x @ weight.T. Gradients use e5m2: fewer bits, more range. Activations are kept in 8 bits."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x8, x_scale = quantised(x, "float8_e4m3fn")
        weight8, weight_scale = quantised(weight, "float8_e4m3fn")
        ctx.save_for_backward(x8, x_scale, weight8, weight_scale)
        ctx.dtypes = x.dtype, weight.dtype
        return scaled_mm(x8, weight8.t(), x_scale, weight_scale)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x8, x_scale, weight8, weight_scale = ctx.saved_tensors
        gradient8, scale = quantised(gradient, "float8_e5m2")
        of_x = scaled_mm(gradient8, by_columns(weight8), scale, weight_scale)
        of_weight = scaled_mm(gradient8.t().contiguous(), by_columns(x8), scale, x_scale)
        return of_x.to(ctx.dtypes[0]), of_weight.to(ctx.dtypes[1])


class Float8Linear(nn.Linear):
    """nn.Linear with products in 8 bits. Rows and columns of all three matrices must be multiples of 16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As nn.Linear; in bfloat16."""
        rows = Product.apply(x.reshape(-1, x.shape[-1]), self.weight)
        return rows.view(*x.shape[:-1], -1) + self.bias.to(rows.dtype)


def convert(module: nn.Module) -> None:
    """Make every linear layer below *module* an 8-bit one; the weights stay the same objects."""
    for layer in module.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = Float8Linear
