"""All-reduce integers that depend on the rank, and compare the sums exactly."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from smoke_tests.torch_api import all_reduced

SIZES = (1, 1000, 1 << 18, (1 << 22) + 3)  # elements: one, few, many, and not a multiple of a power of two
DTYPES = ("int32", "int64", "float32", "float16", "bfloat16")
_EXACT = 255  # bfloat16 represents every integer up to 256


def exact(rank: int, world: int) -> dict[str, Any]:
    """For each dtype and size the number of wrong elements, in place and out of place."""
    wrong: dict[str, list[int]] = {}
    for name in DTYPES:
        for size in SIZES:
            sent = _sent(rank, world, size, name)
            expected = sum(_sent(other, world, size, "int64") for other in range(world)).to(sent.dtype)
            out_of_place = all_reduced(sent)
            unchanged = torch.equal(sent, _sent(rank, world, size, name))
            dist.all_reduce(sent)
            wrong[f"{name}[{size}]"] = [
                int((sent != expected).sum()),
                int((out_of_place != expected).sum()) + (not unchanged),
            ]
    return about(rank) | {"wrong": wrong}


def about(rank: int) -> dict[str, Any]:
    """The rank's backend, GPU and NCCL version."""
    return {
        "rank": rank,
        "world": dist.get_world_size(),
        "backend": dist.get_backend(),
        "device": torch.cuda.current_device(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }


def _sent(rank: int, world: int, size: int, dtype: str) -> torch.Tensor:
    """0, 1, 2 ... repeated, with a different start on each rank; the numbers are so small that every sum
    is exact."""
    steps = torch.arange(size, device="cuda")
    return ((steps + rank) % (_EXACT // world + 1)).to(getattr(torch, dtype))
