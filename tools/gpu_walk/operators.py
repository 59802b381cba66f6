"""Calls a sample of the operators and types in torch's operator database, with their gradients."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from gpu_walk.results import result_of

SAMPLES = 2  # inputs for each operator and type
# These return uninitialized memory, or results that differ from run to run.
_UNDEFINED = ("empty", "new_empty", "resize", "as_strided_scatter")


def operators(
    count: int, seed: int, chosen: slice, device: str = "cuda"
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and results of the *chosen* among *count* pairs of operator and type, which *seed* selects."""
    pairs = [
        (f"{op.name}{f'.{op.variant_test_name}' if op.variant_test_name else ''}:{str(dtype)[6:]}", op, dtype)
        for op in op_db
        if not op.name.startswith(_UNDEFINED)
        for dtype in sorted(op.supported_dtypes(device), key=str)
    ]
    for name, op, dtype in random.Random(seed).sample(sorted(pairs, key=lambda pair: pair[0]), count)[chosen]:
        yield name, _results(op, dtype, device)


def _results(op: Any, dtype: torch.dtype, device: str) -> dict[str, Any]:
    gradients = dtype in op.supported_backward_dtypes(device) and op.supports_autograd

    def call() -> Any:
        random.seed(0)
        samples = op.sample_inputs(device, dtype, requires_grad=gradients)
        return [_called(op, sample, gradients) for sample in itertools.islice(samples, SAMPLES)]

    return result_of(call)


def _called(op: Any, sample: Any, gradients: bool) -> Any:
    found = op(sample.input, *sample.args, **sample.kwargs)
    outputs = [leaf for leaf in pytree.tree_leaves(found) if isinstance(leaf, torch.Tensor)]
    needed = [leaf for leaf in outputs if leaf.requires_grad] if gradients else []
    inputs = [
        leaf
        for leaf in pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    if not needed or not inputs:
        return outputs
    ones = [torch.ones_like(output) for output in needed]
    return outputs, torch.autograd.grad(needed, inputs, ones, allow_unused=True)
