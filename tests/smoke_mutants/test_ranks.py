"""Ranks that die, raise or stay away, with a real torch: named, and ended, over gloo and over NCCL."""

from __future__ import annotations

from pathlib import Path

from tests.smoke_mutants.on_ranks import anywhere, broken_by, on_gpus, tried

# Rank 1 gets as far as the first collective.
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
RAISES = AT_THE_FIRST.format(act="raise MemoryError('no room for rank one')")
PATIENT = """
import torch.distributed as dist
from datetime import timedelta
real = dist.new_group
dist.new_group = lambda *some, **options: real(*some, **(options | {"timeout": timedelta(hours=1)}))
"""
ALL_COME = """
import time, torch.distributed as dist
real_sleep = time.sleep
time.sleep = lambda seconds: real_sleep(seconds if seconds < 60 else 0)
"""


@anywhere
def test_a_killed_rank_is_named(pretend: bool, tmp_path: Path) -> None:
    told = tried("nccl-all-reduce", tmp_path, KILLED, pretend=pretend)
    assert told["outcome"] == "failed"
    assert told["message"].startswith("rank 1 was killed by SIGKILL\n")


@anywhere
def test_a_rank_that_raises_is_named_with_its_words(pretend: bool, tmp_path: Path) -> None:
    told = tried("nccl-all-reduce", tmp_path, RAISES, pretend=pretend)
    assert told["outcome"] == "failed"
    of_rank_1 = told["message"][told["message"].index("rank 1 ended with exit code 1\n") :]
    assert "MemoryError: no room for rank one" in of_rank_1


@anywhere
def test_hang_ends_in_time_where_the_library_gives_up(pretend: bool, tmp_path: Path) -> None:
    assert broken_by("", "hang", tmp_path, pretend=pretend) == []


@on_gpus
def test_hang_fails_at_its_own_limit_where_a_collective_waits_an_hour(pretend: bool, tmp_path: Path) -> None:
    assert broken_by(PATIENT, "hang", tmp_path, pretend=pretend) == ["ended_by_itself", "told_timeout"]


@anywhere
def test_hang_fails_where_the_absent_rank_comes_after_all(pretend: bool, tmp_path: Path) -> None:
    """Nobody waited, so nothing was shown."""
    names = broken_by(ALL_COME, "hang", tmp_path, pretend=pretend)
    assert names == ["ended_in_error", "told_timeout"]
