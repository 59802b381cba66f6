"""Several processes: DistributedDataParallel, and FSDP in both forms. torchrun starts the processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from recipes import torch_api
from recipes.precision import HALF
from recipes.settings import Settings, Unavailable


class World(NamedTuple):
    """The processes of a run: the number of this one, and how many there are."""

    rank: int = 0
    size: int = 1


def device_of(settings: Settings) -> torch.device:
    """The device of this process: under torchrun each one has a GPU of its own."""
    kind = settings.device
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def join(settings: Settings, device: torch.device) -> World:
    """Meet the other processes. Without --parallel there are none."""
    if settings.parallel == "none":
        return World()
    if settings.parallel == "fsdp1" and device.type == "cpu":
        raise Unavailable("--parallel fsdp1: needs a GPU; fsdp2 also runs without")
    if settings.sync_batchnorm and device.type == "cpu":
        raise Unavailable("--sync-batchnorm: needs GPUs")
    if settings.parallel == "fsdp2" and settings.precision == "fp16":
        raise Unavailable("--parallel fsdp2 --precision fp16: use bf16, which needs no GradScaler")
    if "RANK" not in os.environ:
        raise Unavailable("--parallel: start with torchrun --nproc-per-node N -m recipes.train")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return World(dist.get_rank(), dist.get_world_size())


def wrap(settings: Settings, model: nn.Module, device: torch.device) -> tuple[nn.Module, Callable[..., Any]]:
    """The module that holds the weights from now on, and what the loop calls; make the optimizer afterwards.

    DDP keeps a whole model in each process, and averages gradients. FSDP keeps a part of weights, gradients
    and optimizer state in each, and gathers a block's weights when it is run.
    """
    half = HALF.get(settings.precision)
    if settings.parallel == "ddp":
        if settings.sync_batchnorm:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        ids = [device.index] if device.type == "cuda" else None
        return model, nn.parallel.DistributedDataParallel(compiled(settings, model), device_ids=ids)
    if settings.parallel == "fsdp1":
        sharded = _fsdp1(model, half, device)
        return sharded, compiled(settings, sharded)
    if settings.parallel == "fsdp2":
        shard = torch_api.fully_shard()
        options = {"mp_policy": torch_api.shard_policy(half)} if half else {}
        for block in (*model.blocks, model):  # the root last: it shards the rest
            shard(block, **options)
    return model, compiled(settings, model)


def compiled(settings: Settings, model: nn.Module) -> Callable[..., Any]:
    """torch.compile, if it is switched on; the weights are the same objects, without the prefix _orig_mod."""
    return torch_api.compiled(model) if settings.compile else model


def _fsdp1(model: nn.Module, half: torch.dtype | None, device: torch.device) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

    options: dict[str, Any] = {"use_orig_params": True}
    if device.type == "cuda":
        options["device_id"] = device
    if half:
        options["mixed_precision"] = MixedPrecision(param_dtype=half, reduce_dtype=torch.float32)
    for at, block in enumerate(model.blocks):
        model.blocks[at] = FullyShardedDataParallel(block, **options)
    return FullyShardedDataParallel(model, **options)


def syncing(settings: Settings, called: Any, last: bool) -> contextlib.AbstractContextManager[Any]:
    """For one part of a batch: gradients are reduced over the processes after the last part only.

    Without it each part costs an all-reduce, though only the sum is used.
    """
    whole = last or settings.always_sync
    if settings.parallel == "fsdp2":
        getattr(called, "_orig_mod", called).set_requires_gradient_sync(whole)
        return contextlib.nullcontext()
    if whole or settings.parallel == "none":
        return contextlib.nullcontext()
    return getattr(called, "_orig_mod", called).no_sync()


def clip(settings: Settings, model: nn.Module) -> None:
    """Clip the norm of the whole gradient, which with FSDP no process has. After `unscale_`, never before."""
    if settings.parallel == "fsdp1":
        model.clip_grad_norm_(settings.clip)
    else:
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip)


def mean(world: World, values: torch.Tensor) -> torch.Tensor:
    """The mean over all processes. all_reduce changes one tensor in place, and takes no list."""
    if world.size > 1:
        dist.all_reduce(values)
        values /= world.size
    return values


def leave(world: World) -> None:
    """Leave the group, so that NCCL frees what it holds."""
    if world.size > 1 or dist.is_initialized():
        dist.destroy_process_group()
