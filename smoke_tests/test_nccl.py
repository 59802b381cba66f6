"""nccl-all-reduce: NCCL sums over all GPUs, and every element is correct on each rank."""

import pytest

from smoke_tests.ranks import gpus_of_torch, run_ranks


@pytest.mark.tier(2)
@pytest.mark.limit(300)
def test_nccl_all_reduce(claims, measure):
    """One process per GPU; rank-dependent integers are summed exactly, for several sizes and types."""
    from smoke_tests.workers.all_reduce import DTYPES, SIZES

    world = gpus_of_torch()
    seen = run_ranks("all_reduce:exact", limit=240)

    measure("backend", [rank["backend"] for rank in seen], equals=["nccl"] * world)
    measure("world", [rank["world"] for rank in seen], equals=[world] * world)
    measure("gpus", [rank["device"] for rank in seen], equals=list(range(world)))
    told = sorted({rank["nccl"] for rank in seen})
    if claims["nccl"]:
        measure("nccl", told, equals=[short(claims["nccl"])])
    else:  # no lock, and an NCCL that came inside torch or from the system: nothing says what it should be
        measure("nccl", told)
    measure("sums", [len(rank["wrong"]) for rank in seen], equals=[len(DTYPES) * len(SIZES)] * world)
    measure("wrong", [rank["wrong"] for rank in seen])
    measure("wrong_elements", sum(sum(pair) for rank in seen for pair in rank["wrong"].values()), equals=0)


def short(version):
    """The first three numbers of a distribution's version, as the library reports it."""
    return ".".join(version.split(".")[:3])
