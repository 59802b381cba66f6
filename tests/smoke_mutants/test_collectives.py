"""Mutants of nccl-all-reduce, collectives and busbw: another back end or link, messages that go astray."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from smoke_tests.links import SHM, promised
from smoke_tests.probe import probe
from tests.smoke_mutants.mutant import alone, broken
from tests.smoke_mutants.on_ranks import anywhere, broken_by, on_gpus, pretended, tried

GLOO = """
import torch.distributed as dist
real = dist.init_process_group
dist.init_process_group = lambda backend, **options: real("gloo", **options)
"""
ONE_GPU = """
import torch
real = torch.cuda.set_device
torch.cuda.set_device = lambda number: real(0)
"""
ZEROS = """
import torch.distributed as dist
real = dist.all_reduce
def all_reduce(tensor, *more, **options):
    return real(tensor.zero_() if dist.get_rank() == 1 else tensor, *more, **options)
dist.all_reduce = all_reduce
"""
KEPT_APART = """
from torch.distributed import _functional_collectives as functional
functional.all_reduce = lambda tensor, *more, **options: tensor.clone()
"""
HALF = """
import torch.distributed as dist
real = dist.all_reduce
dist.all_reduce = lambda tensor, *more, **options: real(tensor[: len(tensor) // 2], *more, **options)
"""
NO_BROADCAST = """
import torch.distributed as dist
dist.broadcast = lambda tensor, *more, **options: None
"""
NOTHING_GATHERED = """
import torch.distributed as dist
def all_gather(gathered, own, *more, **options):
    gathered.copy_(own.repeat(dist.get_world_size()))
dist.all_gather_into_tensor = all_gather
"""
SCATTERED_UNSUMMED = """
import torch.distributed as dist
def reduce_scatter(received, sent, *more, **options):
    received.copy_(sent[dist.get_rank() * len(received) :][: len(received)])
dist.reduce_scatter_tensor = reduce_scatter
"""
RING_STANDS = """
import torch.distributed as dist
dist.batch_isend_irecv = lambda both: []
"""


@anywhere
@pytest.mark.parametrize("id", ["nccl-all-reduce", "collectives"])
def test_it_passes_in_a_sound_environment(id: str, pretend: bool, tmp_path: Path) -> None:
    assert broken_by("", id, tmp_path, pretend=pretend) == []


@on_gpus
def test_all_reduce_fails_over_gloo(pretend: bool, tmp_path: Path) -> None:
    assert broken_by(GLOO, "nccl-all-reduce", tmp_path, pretend=pretend) == ["backend"]


@on_gpus
def test_all_reduce_fails_with_two_ranks_on_one_gpu(pretend: bool, tmp_path: Path) -> None:
    told = tried("nccl-all-reduce", tmp_path, ONE_GPU, pretend=pretend)
    assert told["outcome"] == "failed"
    assert "Duplicate GPU" in told["message"] or broken(told) == ["gpus"], told["message"]


@anywhere
def test_all_reduce_fails_where_one_rank_sends_zeros(pretend: bool, tmp_path: Path) -> None:
    assert broken_by(ZEROS, "nccl-all-reduce", tmp_path, pretend=pretend) == ["wrong_elements"]


@pretended
def test_all_reduce_fails_where_the_sum_beside_is_none(pretend: bool, tmp_path: Path) -> None:
    assert broken_by(KEPT_APART, "nccl-all-reduce", tmp_path, pretend=pretend) == ["wrong_elements"]


@anywhere
def test_collectives_fail_where_a_broadcast_does_nothing(pretend: bool, tmp_path: Path) -> None:
    assert broken_by(NO_BROADCAST, "collectives", tmp_path, pretend=pretend) == ["broadcast"]


@pretended
def test_collectives_fail_where_the_others_go_astray(pretend: bool, tmp_path: Path) -> None:
    names = broken_by(
        NOTHING_GATHERED + SCATTERED_UNSUMMED + RING_STANDS, "collectives", tmp_path, pretend=pretend
    )
    assert names == ["all_gather", "reduce_scatter", "ring"]


@alone
@on_gpus
def test_busbw_passes_over_the_link_that_is_there(pretend: bool, tmp_path: Path) -> None:
    assert broken_by("", "busbw", tmp_path, pretend=pretend) == []


@alone
@on_gpus
def test_busbw_fails_and_names_the_lower_link_where_p2p_is_off(pretend: bool, tmp_path: Path) -> None:
    if promised(probe("driver")) == SHM:
        pytest.skip("the GPUs here have no link that could be lost")
    told = tried("busbw", tmp_path, pretend=pretend, NCCL_P2P_DISABLE="1")
    assert told["outcome"] == "failed"
    assert re.search("^link: is 'SHM', wanted '(NVLink|PCIe P2P)'$", told["message"], re.M)


@on_gpus
def test_busbw_fails_where_half_of_each_message_is_left_out(pretend: bool, tmp_path: Path) -> None:
    assert broken_by(HALF, "busbw", tmp_path, pretend=pretend) == ["wrong_elements"]
