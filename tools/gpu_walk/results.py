"""The result of a call on a GPU, as values by which two images on the same GPU can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree


def result_of(call: Callable[[], Any]) -> dict[str, Any]:
    """The tensors that *call* returns, as a hash and a sum; or its error.

    The sum is of the finite absolute values, in float64. If a kernel adds in another order, for example with
    atomic additions, the hash changes, but the sum changes only by rounding.
    """
    torch.manual_seed(0)
    try:
        values = [leaf for leaf in pytree.tree_leaves(call()) if isinstance(leaf, torch.Tensor)]
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return _described([value.detach() for value in values])
    # An error of a library is also a result: both images must give the same error.
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]}


def _described(tensors: list[torch.Tensor]) -> dict[str, Any]:
    digest, total, shapes = hashlib.sha256(), 0.0, []
    for tensor in tensors:
        shapes.append(f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}")
        plain = _strided(tensor).cpu().clone(memory_format=torch.contiguous_format)
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
        numbers = _float64(plain)
        total += float(numbers[torch.isfinite(numbers)].sum())
    return {"sha256": digest.hexdigest(), "sum": total, "shapes": shapes[:4]}


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    dense = tensor if tensor.layout == torch.strided else tensor.to_dense()
    return torch.resolve_neg(torch.resolve_conj(dense))


def _float64(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        wide = tensor if tensor.dtype != torch.complex32 else tensor.to(torch.complex64)
        return torch.view_as_real(wide).double().abs()
    return tensor.double().abs()
