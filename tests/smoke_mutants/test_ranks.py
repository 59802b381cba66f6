"""Ranks that die, raise an error or never join, with a real torch over gloo and NCCL, are named and
stopped."""

from __future__ import annotations

from pathlib import Path

from tests.smoke_mutants.mutant import alone
from tests.smoke_mutants.on_ranks import anywhere, broken_by, on_gpus, tried

# Rank 1 fails at the first collective.
AT_THE_FIRST = """
import os, signal
import torch.distributed as dist
real = dist.all_reduce
def all_reduce(tensor, *more, **options):
    if dist.get_rank() == 1:
        {act}
    return real(tensor, *more, **options)
dist.all_reduce = all_reduce
"""
KILLED = AT_THE_FIRST.format(act="os.kill(os.getpid(), signal.SIGKILL)")
RAISES = AT_THE_FIRST.format(act="raise MemoryError('no memory for rank one')")
ONE_HOUR = """
import torch.distributed as dist
from datetime import timedelta
real = dist.new_group
dist.new_group = lambda *some, **options: real(*some, **(options | {"timeout": timedelta(hours=1)}))
"""
NO_RANK_ABSENT = """
import time, torch.distributed as dist
real_sleep = time.sleep
time.sleep = lambda seconds: real_sleep(seconds if seconds < 60 else 0)
"""


@anywhere
def test_a_killed_rank_is_named(pretend: bool, tmp_path: Path) -> None:
    result = tried("nccl-all-reduce", tmp_path, KILLED, pretend=pretend)
    assert result["outcome"] == "failed"
    assert result["message"].startswith("rank 1 was killed by SIGKILL\n")


@anywhere
def test_a_rank_that_raises_is_named_with_its_error(pretend: bool, tmp_path: Path) -> None:
    result = tried("nccl-all-reduce", tmp_path, RAISES, pretend=pretend)
    assert result["outcome"] == "failed"
    of_rank_1 = result["message"][result["message"].index("rank 1 ended with exit code 1\n") :]
    assert "MemoryError: no memory for rank one" in of_rank_1


@alone  # the check limits the ranks to 90 s, too little beside 13 other tests
@anywhere
def test_hang_passes_if_the_library_ends_the_ranks(pretend: bool, tmp_path: Path) -> None:
    assert broken_by("", "hang", tmp_path, pretend=pretend) == []


@on_gpus
def test_hang_fails_at_its_limit_if_a_collective_waits_an_hour(pretend: bool, tmp_path: Path) -> None:
    names = broken_by(ONE_HOUR, "hang", tmp_path, pretend=pretend)
    assert names == ["ended_by_itself", "timeout_reported"]


@anywhere
def test_hang_fails_if_the_absent_rank_joins(pretend: bool, tmp_path: Path) -> None:
    """The check must fail, because no rank waited."""
    names = broken_by(NO_RANK_ABSENT, "hang", tmp_path, pretend=pretend)
    assert names == ["ended_in_error", "timeout_reported"]
