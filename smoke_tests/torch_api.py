"""Functions whose names differ between torch 2.0.1 and today. Imports torch; import it inside a check."""

from __future__ import annotations

import contextlib
from typing import Any

import torch


def grad_scaler(**options: Any) -> Any:
    """A GradScaler for CUDA: torch.amp's from 2.3 on, before that torch.cuda.amp's."""
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cuda", **options)
    return torch.cuda.amp.GradScaler(**options)


def only_sdpa(backend: str) -> contextlib.AbstractContextManager[None]:
    """Attention with *backend* ("flash" or "math") only; raises if it does not support the inputs."""
    attention = getattr(torch.nn, "attention", None)  # from 2.3 on
    if attention is not None and hasattr(attention, "sdpa_kernel"):
        kinds = attention.SDPBackend
        return attention.sdpa_kernel({"flash": kinds.FLASH_ATTENTION, "math": kinds.MATH}[backend])
    return torch.backends.cuda.sdp_kernel(
        enable_flash=backend == "flash", enable_math=backend == "math", enable_mem_efficient=False
    )


def scaled_mm(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    """a @ b of float8 matrices in bfloat16, *b* column-major. torch before 2.5 also returns the largest
    value."""
    found = torch._scaled_mm(a, b, out_dtype=torch.bfloat16, scale_a=scale_a, scale_b=scale_b)
    return found[0] if isinstance(found, tuple) else found


def all_reduced(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of *tensor* over all ranks, as a new tensor; torch before 2.1 sums a copy in place."""
    import torch.distributed as dist

    if tuple_of(torch.__version__) < (2, 1):
        copy = tensor.clone()
        dist.all_reduce(copy)
        return copy
    from torch.distributed import _functional_collectives as functional

    found = functional.all_reduce(tensor, "sum", dist.group.WORLD)
    return found.wait() if hasattr(found, "wait") else found


def tuple_of(version: str) -> tuple[int, int]:
    """Major and minor version of torch."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def tensor_float(allowed: bool) -> None:
    """Set whether FP32 products, convolutions and recurrent layers may use TF32.

    torch 2.9 and newer have a second set of switches (`fp32_precision`) and raise if it disagrees with the
    older set. The two switches used here set both, and mean the same in every torch.
    """
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


def name_kernels_by_operation() -> None:
    """Let Inductor name each Triton kernel by its operations, as in triton_poi_fused_mul_sin_0.

    By default, older releases name every kernel `triton_`. The first two settings are for torch 2.0.
    """
    import torch._inductor.config as config

    settings: dict[str, Any] = {
        "ordered_kernel_names": True,
        "descriptive_kernel_names": True,
        "unique_kernel_names": True,
        "descriptive_names": "original_aten",
    }
    for name, value in settings.items():
        if hasattr(config.triton, name):
            setattr(config.triton, name, value)


def custom_autocast() -> tuple[Any, Any]:
    """Decorators for forward, which gets FP32 inputs and runs without autocast, and backward of a function:
    torch.amp's from 2.4 on, before that torch.cuda.amp's."""
    if hasattr(torch.amp, "custom_fwd"):
        amp = torch.amp
        return amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32), amp.custom_bwd(
            device_type="cuda"
        )
    return torch.cuda.amp.custom_fwd(cast_inputs=torch.float32), torch.cuda.amp.custom_bwd
