"""extension: this environment's nvcc and C++ compiler build a CUDA operator for torch, and it runs."""

import pytest

from smoke_tests.probe import probe

VALUES = {
    "extension": {
        "nvcc": {"type": "string"},
        "cuda_home": {"type": "string"},
        "library": {"type": "string"},
        "operator": {"type": "string"},
        "device": {"equals": "cuda"},
        "wrong": {"equals": 0},
    },
}


@pytest.mark.tier(1)
@pytest.mark.limit(300)
def test_extension(measure, tmp_path):
    """torch.utils.cpp_extension builds an operator in another process; loaded in this process, it is
    exact."""
    import torch

    numbers = torch.arange(1_000_000, device="cuda")  # first: without a GPU there is nothing to build for
    built = probe("extension", str(tmp_path))
    for name in ("nvcc", "cuda_home", "library"):
        measure(name, built[name])
    torch.ops.load_library(built["library"])

    found = torch.ops.kiln.triangular(numbers)
    expected = (numbers * (numbers + 1)).cpu() // 2
    measure("operator", str(torch.ops.kiln.triangular.default))
    measure("device", found.device.type)
    measure("wrong", int((found.cpu() != expected).sum()))
