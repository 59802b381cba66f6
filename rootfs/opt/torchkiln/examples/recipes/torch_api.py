"""What differs between the releases of torch, 2.0 to today: the only file that asks for a release."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import torch

from recipes.settings import Unavailable

RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])


def grad_scaler(device: str, **options: Any) -> Any:
    """A GradScaler: torch.amp's from 2.3 on; before that only the one for CUDA, under another name."""
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(device, **options)
    options["enabled"] = options.get("enabled", True) and device == "cuda"
    return torch.cuda.amp.GradScaler(**options)


def tensor_float(allowed: bool) -> None:
    """Whether FP32 products and convolutions may round their factors to TF32 (10 bits instead of 23).

    By default products may not and convolutions may, so "FP32" in a table means little until both are set.
    """
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


def fully_shard() -> Callable[..., Any]:
    """FSDP2: public from 2.6 on, in 2.4 and 2.5 under a private name."""
    if RELEASE >= (2, 6):
        from torch.distributed.fsdp import fully_shard as found
    elif RELEASE >= (2, 4):
        from torch.distributed._composable.fsdp import fully_shard as found
    else:
        raise Unavailable(f"--parallel fsdp2: needs torch 2.4 or later; this is {torch.__version__}")
    return found


def shard_policy(dtype: torch.dtype) -> Any:
    """FSDP2's policy: gather weights in *dtype*, add gradients up in FP32."""
    if RELEASE >= (2, 6):
        from torch.distributed.fsdp import MixedPrecisionPolicy
    else:
        from torch.distributed._composable.fsdp import MixedPrecisionPolicy
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)


def sharded_state(kind: str) -> Any:
    """The module that reads and writes whole state dicts of sharded models; 2.4 cannot read FSDP2's."""
    least = (2, 5) if kind == "fsdp2" else (2, 3)
    if least > RELEASE:
        needs = f"needs torch {least[0]}.{least[1]} or later; this is {torch.__version__}"
        raise Unavailable(f"--save and --resume with --parallel {kind}: {needs}")
    import torch.distributed.checkpoint.state_dict as found

    return found


def scaled_mm(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    """a @ b of float8 matrices in bfloat16, *b* column-major. Before 2.5 the largest value came with it."""
    if a.device.type == "cpu":  # no tensor cores: the same numbers, slowly
        return ((a.float() * scale_a) @ (b.float() * scale_b)).to(torch.bfloat16)
    found = torch._scaled_mm(a, b, out_dtype=torch.bfloat16, scale_a=scale_a, scale_b=scale_b)
    return found[0] if isinstance(found, tuple) else found


def demand_fp8(device: torch.device) -> None:
    """float8 dtypes came with 2.1; the GPU needs compute capability 8.9.

    :raises Unavailable: one of both is missing.
    """
    if not hasattr(torch, "float8_e4m3fn"):
        raise Unavailable(f"--precision fp8: needs torch 2.1 or later; this is {torch.__version__}")
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        major, minor = torch.cuda.get_device_capability(device)
        raise Unavailable(
            f"--precision fp8: needs compute capability 8.9; {_name(device)} has {major}.{minor}"
        )


def compiled(model: Any) -> Callable[..., Any]:
    """torch.compile; each release refuses the Pythons that came after it."""
    try:
        return torch.compile(model)
    except RuntimeError as error:
        raise Unavailable(f"--compile: torch {torch.__version__}: {error}") from error


def adafactor() -> Callable[..., torch.optim.Optimizer]:
    """torch.optim.Adafactor, from 2.5 on."""
    if not hasattr(torch.optim, "Adafactor"):
        raise Unavailable(f"--optimizer adafactor: needs torch 2.5 or later; this is {torch.__version__}")
    return torch.optim.Adafactor


def record_memory() -> None:
    """Remember where each block of GPU memory was allocated; the arguments changed in 2.1."""
    if RELEASE >= (2, 1):
        torch.cuda.memory._record_memory_history(max_entries=100_000)
    else:
        torch.cuda.memory._record_memory_history(True, trace_alloc_max_entries=100_000)


def write_memory(path: str) -> None:
    """The snapshot that pytorch.org/memory_viz draws."""
    with open(path, "wb") as file:
        pickle.dump(torch.cuda.memory._snapshot(), file)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device)
