"""Mutants of ddp, ddp-amp and fsdp: ranks train alone, ranks die, or weights are not sharded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.smoke_mutants.on_ranks import anywhere, broken_by, pretended, tried

NO_WRAPPER = """
import torch
torch.nn.parallel.DistributedDataParallel = lambda module, **options: module
"""
# Each rank keeps the weights of a different seed.
NOT_DISTRIBUTED = """
from torch.nn.parallel import distributed
distributed._sync_module_states = lambda *some, **options: None
"""
# Rank 1 dies in the backward pass, after the first gradients were sent.
DIES_IN_BACKWARD = """
import os, signal, torch, torch.distributed as dist
real = torch.nn.parallel.DistributedDataParallel
def dying(module, **options):
    if dist.get_rank() == 1:
        first = next(module.parameters())
        first.register_hook(lambda gradient: os.kill(os.getpid(), signal.SIGKILL))
    return real(module, **options)
torch.nn.parallel.DistributedDataParallel = dying
"""
# Rank 0 takes the step even if its scaler found an inf.
ALWAYS_STEPS = """
import torch, torch.distributed as dist
scaler = (torch.amp if hasattr(torch.amp, "GradScaler") else torch.cuda.amp).GradScaler
real = scaler._maybe_opt_step
def step(self, optimizer, state, *more, **options):
    if dist.get_rank() == 0:
        return optimizer.step(*more, **options)
    return real(self, optimizer, state, *more, **options)
scaler._maybe_opt_step = step
"""
NO_SHARD = """
from torch.distributed import fsdp
real = fsdp.FullyShardedDataParallel.__init__
def whole(self, module, *more, **options):
    real(self, module, *more, **(options | {"sharding_strategy": fsdp.ShardingStrategy.NO_SHARD}))
fsdp.FullyShardedDataParallel.__init__ = whole
"""
# Each later all-gather returns the shards of the first; gloo gathers into a list.
STALE = """
import torch.distributed as dist
first = {}
def stale(real):
    def gather(gathered, own, *more, **options):
        done = real(gathered, own, *more, **options)
        for number, part in enumerate(gathered if isinstance(gathered, list) else [gathered]):
            part.copy_(first.setdefault((own.data_ptr(), number), part.clone()))
        return done
    return gather
dist.all_gather, dist.all_gather_into_tensor = stale(dist.all_gather), stale(dist.all_gather_into_tensor)
"""
EACH_ALONE = """
import contextlib
from torch.distributed import fsdp
class Alone:
    def __new__(cls, module, **options):
        return module.cuda()
    summon_full_params = staticmethod(lambda model, **options: contextlib.nullcontext())
fsdp.FullyShardedDataParallel = Alone
"""


@anywhere
@pytest.mark.parametrize("id", ["ddp", "ddp-amp", "fsdp"])
def test_the_check_passes_in_an_unchanged_environment(id: str, pretend: bool, tmp_path: Path) -> None:
    assert broken_by("", id, tmp_path, pretend=pretend) == []


@anywhere
def test_ddp_fails_without_its_wrapper(pretend: bool, tmp_path: Path) -> None:
    names = broken_by(NO_WRAPPER, "ddp", tmp_path, pretend=pretend)
    assert names == ["different_ranks", "error_after_step_1", "error_after_step_2"]


@anywhere
def test_ddp_fails_if_each_rank_keeps_the_weights_of_its_seed(pretend: bool, tmp_path: Path) -> None:
    names = broken_by(NOT_DISTRIBUTED, "ddp", tmp_path, pretend=pretend)
    assert names == ["different_ranks", "error_after_step_1", "error_after_step_2"]


@anywhere
def test_ddp_names_a_rank_that_dies_in_the_backward_pass(pretend: bool, tmp_path: Path) -> None:
    result = tried("ddp", tmp_path, DIES_IN_BACKWARD, pretend=pretend)
    assert result["outcome"] == "failed"
    assert result["message"].startswith("rank 1 was killed by SIGKILL\n")


@pretended
def test_ddp_amp_fails_if_only_the_rank_with_the_inf_skips_the_step(pretend: bool, tmp_path: Path) -> None:
    names = broken_by(NO_WRAPPER, "ddp-amp", tmp_path, pretend=pretend)
    assert names == ["scales", "different_ranks", "steps_taken"]


@anywhere
def test_ddp_amp_fails_if_one_rank_takes_the_step(pretend: bool, tmp_path: Path) -> None:
    names = broken_by(ALWAYS_STEPS, "ddp-amp", tmp_path, pretend=pretend)
    assert {"different_ranks", "steps_taken"} <= set(names) <= {"scales", "different_ranks", "steps_taken"}


@anywhere
def test_fsdp_fails_if_nothing_is_sharded(pretend: bool, tmp_path: Path) -> None:
    assert broken_by(NO_SHARD, "fsdp", tmp_path, pretend=pretend) == ["largest_memory_ratio"]


@anywhere
def test_fsdp_fails_if_the_gathered_shards_are_stale(pretend: bool, tmp_path: Path) -> None:
    assert "largest_error" in broken_by(STALE, "fsdp", tmp_path, pretend=pretend)


@pretended
def test_fsdp_fails_if_each_rank_trains_alone(pretend: bool, tmp_path: Path) -> None:
    names = broken_by(EACH_ALONE, "fsdp", tmp_path, pretend=pretend)
    assert names == ["largest_error", "largest_memory_ratio"]
