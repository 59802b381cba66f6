"""Mutants of nccl-all-reduce, collectives and busbw: another backend or link, messages that are not sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from smoke_tests.expected import SHM, promised_link
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
NOTHING = """
import torch.distributed as dist
dist.all_reduce = lambda tensor, *more, **options: None
"""
# Rank 1 sends its elements, but does not replace them by received ones.
WRONG_ON_ONE = """
import torch.distributed as dist
real = dist.all_reduce
def all_reduce(tensor, *more, **options):
    return real(tensor if dist.get_rank() == 0 else tensor.clone(), *more, **options)
dist.all_reduce = all_reduce
"""
WRONG_IN_BF16 = """
import torch, torch.distributed as dist
real = dist.all_reduce
def all_reduce(tensor, *more, **options):
    done = real(tensor, *more, **options)
    if tensor.dtype == torch.bfloat16:
        tensor[-1] += 1
    return done
dist.all_reduce = all_reduce
"""
NOT_SUMMED = """
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
NO_RING = """
import torch.distributed as dist
dist.batch_isend_irecv = lambda both: []
"""


@anywhere
@pytest.mark.parametrize("id", ["nccl-all-reduce", "collectives"])
def test_the_check_passes_in_an_unchanged_environment(id: str, pretend: bool, tmp_path: Path) -> None:
    assert broken_by("", id, tmp_path, pretend=pretend) == []


@on_gpus
def test_all_reduce_fails_over_gloo(pretend: bool, tmp_path: Path) -> None:
    assert broken_by(GLOO, "nccl-all-reduce", tmp_path, pretend=pretend) == ["backend"]


@on_gpus
def test_all_reduce_fails_with_two_ranks_on_one_gpu(pretend: bool, tmp_path: Path) -> None:
    result = tried("nccl-all-reduce", tmp_path, ONE_GPU, pretend=pretend)
    assert result["outcome"] == "failed"
    assert "Duplicate GPU" in result["message"] or broken(result) == ["gpus"], result["message"]


@anywhere
@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(ZEROS, id="one rank sends zeros"),
        pytest.param(NOTHING, id="it does nothing"),
        pytest.param(WRONG_ON_ONE, id="one rank gets no sum"),
        pytest.param(WRONG_IN_BF16, id="one element in bfloat16 is wrong"),
    ],
)
def test_all_reduce_fails_if_a_sum_is_wrong(mutant: str, pretend: bool, tmp_path: Path) -> None:
    assert broken_by(mutant, "nccl-all-reduce", tmp_path, pretend=pretend) == ["wrong_elements"]


@pretended
def test_all_reduce_fails_if_the_sum_out_of_place_is_missing(pretend: bool, tmp_path: Path) -> None:
    assert broken_by(NOT_SUMMED, "nccl-all-reduce", tmp_path, pretend=pretend) == ["wrong_elements"]


@anywhere
def test_collectives_fail_if_a_broadcast_does_nothing(pretend: bool, tmp_path: Path) -> None:
    assert broken_by(NO_BROADCAST, "collectives", tmp_path, pretend=pretend) == ["broadcast"]


@pretended
def test_collectives_fail_if_the_other_operations_do_nothing(pretend: bool, tmp_path: Path) -> None:
    names = broken_by(
        NOTHING_GATHERED + SCATTERED_UNSUMMED + NO_RING, "collectives", tmp_path, pretend=pretend
    )
    assert names == ["all_gather", "reduce_scatter", "ring"]


@alone
@on_gpus
def test_busbw_passes_over_the_available_link(pretend: bool, tmp_path: Path) -> None:
    assert broken_by("", "busbw", tmp_path, pretend=pretend) == []


@alone
@on_gpus
def test_busbw_fails_and_names_the_slower_link_if_p2p_is_off(pretend: bool, tmp_path: Path) -> None:
    if promised_link(probe("driver")) == SHM:
        pytest.skip("the GPUs have no direct link")
    result = tried("busbw", tmp_path, pretend=pretend, NCCL_P2P_DISABLE="1")
    assert result["outcome"] == "failed"
    assert result["measured"]["link"] == SHM
    assert "link_number" in broken(result)


@alone
@on_gpus
def test_busbw_fails_over_sockets(pretend: bool, tmp_path: Path) -> None:
    """Without direct links and without shared memory, NCCL uses the network."""
    result = tried("busbw", tmp_path, pretend=pretend, NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1")
    assert result["outcome"] == "failed"
    assert result["measured"]["link"] not in (promised_link(probe("driver")), SHM)
    assert "link_number" in broken(result)


@on_gpus
def test_busbw_fails_if_half_of_each_message_is_not_sent(pretend: bool, tmp_path: Path) -> None:
    assert broken_by(HALF, "busbw", tmp_path, pretend=pretend) == ["wrong_elements"]
