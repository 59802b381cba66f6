"""Mutants of training-parts: each changes one part of a training step, not its reference in FP64."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.smoke_mutants.pretended import anywhere, broken_by, faults_by

FP32 = ["wrong_in_fp32", "largest_error_in_fp32"]
HALF = ["wrong_under_autocast", "largest_error_under_autocast"]
STEPS = ["wrong_steps", "largest_step_error"]

# The function *name* of torch.nn.functional, in FP32 and under autocast, times 1.05.
OFF = """
import torch
from torch.nn import functional
real = functional.{name}
def off(*inputs, **options):
    found = real(*inputs, **options)
    return found if found.dtype == torch.float64 else found * 1.05
functional.{name} = off
"""
# The gradient of the input *number* is off, the output is correct.
GRADIENT_OFF = """
import torch
from torch.nn import functional
real = functional.{name}
def off(*inputs, **options):
    inputs = list(inputs)
    one = inputs[{number}]
    if one.dtype != torch.float64 and one.requires_grad:
        inputs[{number}] = one.clone()
        inputs[{number}].register_hook(lambda gradient: gradient * 1.05)
    return real(*inputs, **options)
functional.{name} = off
"""
NO_MASK = """
import torch
from torch.nn import functional
real = functional.scaled_dot_product_attention
def attention(q, k, v, attn_mask=None, *more, **options):
    return real(q, k, v, attn_mask if q.dtype == torch.float64 else None, *more, **options)
functional.scaled_dot_product_attention = attention
"""
NO_STATISTICS = """
import torch
from torch.nn import functional
real = functional.batch_norm
def batch_norm(rows, mean, variance, weight=None, bias=None, training=False, *more, **options):
    if training and mean is not None and rows.dtype != torch.float64:
        mean, variance = mean.clone(), variance.clone()
    return real(rows, mean, variance, weight, bias, training, *more, **options)
functional.batch_norm = batch_norm
"""
TRAINS_PADDING = """
import torch
from torch.nn import functional
real = functional.embedding
def embedding(words, table, padding_idx=None, **options):
    return real(words, table, padding_idx if table.dtype == torch.float64 else None, **options)
functional.embedding = embedding
"""
OFF_UNDER_AUTOCAST = """
import torch
from torch.nn import functional
real = functional.linear
def linear(*inputs, **options):
    found = real(*inputs, **options)
    return found * 1.05 if found.dtype == torch.float16 else found
functional.linear = linear
"""
NO_SCALE_IN_DROPOUT = """
import torch
from torch.nn import functional
real = functional.dropout
def dropout(rows, p=0.5, *more, **options):
    return real(rows, p, *more, **options) * (1 - p)
functional.dropout = dropout
"""
FUSED_IGNORES_SCALE = """
import torch
real = torch._fused_adamw_
torch._fused_adamw_ = lambda *tensors, **options: real(*tensors, **(options | {"grad_scale": None}))
"""
FUSED_RATE = """
import torch
real = torch._fused_adamw_
torch._fused_adamw_ = lambda *tensors, **options: real(*tensors, **(options | {"lr": 1.05 * options["lr"]}))
"""
FOREACH_DECAY = """
import torch
real = torch._foreach_mul_
torch._foreach_mul_ = lambda tensors, by: real(tensors, 1 if isinstance(by, float) and by == 0.99 else by)
"""
# Name, mutant, the values that it breaks, and a part of the finding.
MUTANTS = {
    "sound": ("", [], ""),
    "conv2d's weight gradient": (
        GRADIENT_OFF.format(name="conv2d", number=1),
        [*FP32, *HALF],
        "conv2d, gradient 1",
    ),
    "conv_transpose3d's bias gradient": (
        GRADIENT_OFF.format(name="conv_transpose3d", number=2),
        [*FP32, *HALF],
        "conv_transpose3d, gradient 2",
    ),
    "attention ignores its mask": (NO_MASK, [*FP32, *HALF], "attention with a mask, output 0"),
    "running statistics": (NO_STATISTICS, [*FP32, *HALF], "batch_norm's running statistics, output 0"),
    "padding is trained": (TRAINS_PADDING, [*FP32, *HALF], "embedding, gradient 0"),
    "dropout does not scale": (NO_SCALE_IN_DROPOUT, ["dropout_wrong"], "dropout_wrong"),
    "linear under autocast": (OFF_UNDER_AUTOCAST, HALF, "linear, output 0"),
    "a fused step ignores the scale": (FUSED_IGNORES_SCALE, STEPS, "AdamW, fused"),
    "a fused step is too long": (FUSED_RATE, STEPS, "AdamW, fused"),
    "foreach without weight decay": (FOREACH_DECAY, STEPS, "AdamW, foreach"),
    **{
        name: (OFF.format(name=name), [*FP32, *HALF], name)
        for name in ("cross_entropy", "mse_loss", "ctc_loss", "group_norm", "embedding_bag")
    },
    **{name: (OFF.format(name=name), [*FP32, *HALF], "transformer layer") for name in ("layer_norm", "gelu")},
    **{
        name: (OFF.format(name=name), [*FP32, *HALF], name)
        for name in (
            "softplus",
            "log_softmax",
            "max_pool2d",
            "interpolate",
            "grid_sample",
            "cosine_similarity",
        )
    },
}


@anywhere
@pytest.mark.parametrize("name", MUTANTS)
def test_training_parts_and_its_mutants(name: str, pretend: bool, tmp_path: Path) -> None:
    mutant, values, part = MUTANTS[name]
    faults = faults_by(mutant, "training-parts", tmp_path, pretend=pretend)
    assert [fault.split(":")[0] for fault in faults] == values
    assert not values or part in faults[0]


@anywhere
def test_training_parts_fails_by_tf32(pretend: bool, tmp_path: Path) -> None:
    """The fake GPU has no TF32, so the mutant rounds the factors to TF32's ten bits."""
    tf32 = """
import torch
from torch.nn import functional
real = functional.linear
def rounded(tensor):
    if tensor is None or tensor.dtype != torch.float32:
        return tensor
    return (tensor.detach().view(torch.int32) & -8192).view(torch.float32) + tensor - tensor.detach()
functional.linear = lambda *inputs: real(*map(rounded, inputs))
"""
    assert broken_by(tf32, "training-parts", tmp_path, pretend=pretend) == FP32
