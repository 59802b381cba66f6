"""nvrtc: torch's NVRTC compiles CUDA source at run time, and the result is correct."""

import math
import os
from pathlib import Path

import pytest

SIZE = 10_000
SOURCE = "template <typename T> T kiln(T x, T y, T factor) { return factor * x * x - y; }"


@pytest.mark.tier(1)
def test_nvrtc(measure, monkeypatch, tmp_path):
    """NVRTC compiles a kernel of our own and one of torch's, and every element is correct."""
    # A new cache: an older kernel would be loaded from it, and nothing compiled.
    monkeypatch.setenv("USE_PYTORCH_KERNEL_CACHE", "1")
    monkeypatch.setenv("PYTORCH_KERNEL_CACHE_PATH", str(tmp_path))
    import torch

    numbers, others = range(SIZE), range(SIZE, 0, -1)
    x, y = (torch.tensor(list(values), dtype=torch.int64, device="cuda") for values in (numbers, others))

    ours = torch.cuda.jiterator._create_jit_fn(SOURCE, factor=1)(x, y, factor=3)
    of_ours = _made(tmp_path)
    theirs = torch.gcd(x, y)  # torch compiles this one only when it is first asked for
    of_theirs = _made(tmp_path) - of_ours

    by_hand = [3 * one * one - other for one, other in zip(numbers, others, strict=True)]
    measure("source_wrong", _wrong(ours, by_hand), equals=0)
    measure("gcd_wrong", _wrong(theirs, map(math.gcd, numbers, others)), equals=0)
    measure("compiled", sorted(of_ours | of_theirs))  # the names tell architecture and NVRTC's version
    measure("source_compiled", len(of_ours), at_least=1)
    measure("gcd_compiled", len(of_theirs), at_least=1)


def _made(folder):
    """The kernels in torch's cache."""
    return {name for name in os.listdir(folder) if Path(folder, name).stat().st_size}


def _wrong(found, wanted):
    """The number of elements that differ."""
    return sum(one != other for one, other in zip(found.tolist(), wanted, strict=True))
