"""Mutants of ddp, ddp-amp and fsdp: ranks that train alone or are not sharded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.smoke_mutants.on_ranks import anywhere, broken_by, pretended

NO_WRAPPER = """
import torch
torch.nn.parallel.DistributedDataParallel = lambda module, **options: module
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


@pretended
def test_fsdp_fails_if_each_rank_trains_alone(pretend: bool, tmp_path: Path) -> None:
    names = broken_by(EACH_ALONE, "fsdp", tmp_path, pretend=pretend)
    assert names == ["largest_error", "largest_memory_ratio"]
