"""Ranks that each have a fake GPU: gloo in place of NCCL, and tensors on the CPU.

This code runs before a check for several GPUs. Without GPUs, it shows that the values of the check are within
their bounds, and which values a mutant breaks. It reports gloo as the backend, so that no check passes. Links
and speed are not imitated.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.overrides import TorchFunctionMode

WORLD = 2


class Redirect(TorchFunctionMode):
    """Run calls for "cuda" on the CPU, and mark tensors that are copied to the host."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.cpu:
            copy = args[0].clone()
            copy.of_host = True
            return copy
        options = {key: "cpu" if value == "cuda" else value for key, value in (kwargs or {}).items()}
        return func(*args, **options)


def held() -> int:
    """The bytes of all live tensors that are not marked as tensors of the host."""
    tensors = [candidate for candidate in gc.get_objects() if isinstance(candidate, torch.Tensor)]
    storages = [tensor.untyped_storage() for tensor in tensors if not hasattr(tensor, "of_host")]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def on_cpu(kind: Any, **always: Any) -> Any:
    """*kind*, a class whose first argument is a device type, always for the CPU."""

    class OnCpu(kind):  # type: ignore[misc]
        def __init__(self, device: str = "cuda", **options: Any) -> None:
            super().__init__("cpu", **(options | always))

    return OnCpu


def with_option(function: Callable[..., Any], name: str, value: Any) -> Callable[..., Any]:
    """*function*, which is always called with this option."""
    return lambda *args, **options: function(*args, **(options | {name: value}))


device = [0]
real_group = dist.init_process_group
torch.cuda.device_count = lambda: WORLD
torch.cuda.set_device = lambda number: device.__setitem__(0, number)
torch.cuda.current_device = lambda: device[0]
torch.cuda.synchronize = lambda: None
torch.cuda.memory_allocated = held
torch.cuda.nccl.version = lambda: (0, 0, 0)
torch.autocast = on_cpu(torch.autocast, dtype=torch.bfloat16)
torch.amp.GradScaler = on_cpu(torch.amp.GradScaler)
dist.init_process_group = lambda backend, **options: real_group("gloo", **options)
parallel, sharded = torch.nn.parallel, FullyShardedDataParallel
parallel.DistributedDataParallel = with_option(parallel.DistributedDataParallel, "device_ids", None)
sharded.__init__ = with_option(sharded.__init__, "device_id", torch.device("cpu"))
Redirect().__enter__()
