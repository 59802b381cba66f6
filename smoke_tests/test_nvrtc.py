"""nvrtc: torch's NVRTC compiles CUDA source at run time, and the result is correct."""

import math
import os
from pathlib import Path

import pytest

SIZE = 10_000
SOURCE = "template <typename T> T kiln(T x, T y, T factor) { return factor * x * x - y; }"

VALUES = {
    "nvrtc": {
        "source_wrong": {"equals": 0},
        "gcd_wrong": {"equals": 0},
        # Files in torch's cache; the names contain the architecture and the version of NVRTC.
        "compiled": {"type": ["string"]},
        "source_compiled": {"at_least": 1},
        "gcd_compiled": {"at_least": 1},
    },
}


@pytest.mark.tier(1)
def test_nvrtc(measure, monkeypatch, tmp_path):
    """NVRTC compiles a kernel of this check and one of torch's, and every element is correct."""
    # A new cache, because torch would load an older kernel from the cache instead of compiling it.
    monkeypatch.setenv("USE_PYTORCH_KERNEL_CACHE", "1")
    monkeypatch.setenv("PYTORCH_KERNEL_CACHE_PATH", str(tmp_path))
    import torch

    up, down = range(SIZE), range(SIZE, 0, -1)
    x, y = (torch.tensor(list(values), dtype=torch.int64, device="cuda") for values in (up, down))

    ours = torch.cuda.jiterator._create_jit_fn(SOURCE, factor=1)(x, y, factor=3)
    of_ours = _made(tmp_path)
    theirs = torch.gcd(x, y)  # torch compiles it at its first call
    of_theirs = _made(tmp_path) - of_ours

    exact = [3 * number * number - other for number, other in zip(up, down, strict=True)]
    measure("source_wrong", _wrong(ours, exact))
    measure("gcd_wrong", _wrong(theirs, map(math.gcd, up, down)))
    measure("compiled", sorted(of_ours | of_theirs))
    measure("source_compiled", len(of_ours))
    measure("gcd_compiled", len(of_theirs))


def _made(folder):
    """The kernels in torch's cache."""
    return {name for name in os.listdir(folder) if Path(folder, name).stat().st_size}


def _wrong(found, expected):
    """The number of elements that differ."""
    return sum(value != number for value, number in zip(found.tolist(), expected, strict=True))
