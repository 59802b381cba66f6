"""A checkpoint has all that the next step depends on: a resumed run has the curve of an uninterrupted one."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from recipes import torch_api
from recipes.parallel import World
from recipes.settings import Settings, Unavailable

SAME = ("model", "size", "data", "seed", "batch", "precision", "optimizer", "accumulate")


def save(
    settings: Settings,
    world: World,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: Any,
) -> None:
    """Write the file of --save. It gets its name when it is complete: a killed run leaves the last one."""
    weights, state = _states(settings, model, optimizer)
    if world.rank:
        return
    content = {
        "step": step,
        "model": weights,
        "optimizer": state,
        "scaler": scaler.state_dict(),  # its factor, and how long ago it changed
        "random": torch.get_rng_state(),
        "random_gpu": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
        "made_by": {**{name: getattr(settings, name) for name in SAME}, "world": world.size},
    }
    part = f"{settings.save}.part"
    torch.save(content, part)
    os.replace(part, settings.save)


def load(
    settings: Settings, world: World, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: Any
) -> int:
    """Load the file of --resume, and return the number of its steps; 0 without a file.

    :raises Unavailable: it is of other settings, with which the curve would be another.
    """
    if not settings.resume:
        return 0
    # weights_only: somebody else's file cannot run code. On the CPU: else each process fills the first GPU.
    content = torch.load(settings.resume, map_location="cpu", weights_only=True)
    mine = {**{name: getattr(settings, name) for name in SAME}, "world": world.size}
    wrong = [
        f"{name} {content['made_by'].get(name)}"
        for name in mine
        if content["made_by"].get(name) != mine[name]
    ]
    if wrong:
        raise Unavailable(f"--resume {settings.resume}: made with {', '.join(wrong)}")
    if settings.parallel.startswith("fsdp"):
        api = torch_api.sharded_state(settings.parallel)
        api.set_state_dict(
            model,
            optimizer,
            model_state_dict=content["model"],
            optim_state_dict=content["optimizer"],
            options=api.StateDictOptions(full_state_dict=True),
        )
    else:
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
    scaler.load_state_dict(content["scaler"])
    torch.set_rng_state(content["random"])
    if content["random_gpu"] is not None and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(content["random_gpu"])
    return int(content["step"])


def _states(settings: Settings, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
    """The state dicts of model and optimizer; with FSDP gathered, by all processes together."""
    if not settings.parallel.startswith("fsdp"):
        return model.state_dict(), optimizer.state_dict()
    api = torch_api.sharded_state(settings.parallel)
    options = api.StateDictOptions(full_state_dict=True, cpu_offload=True)
    return api.get_state_dict(model, optimizer, options=options)
