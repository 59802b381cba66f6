"""compile-cpu: torch.compile builds machine code with the image's compiler, and it is correct."""

import os
from pathlib import Path

import pytest

VALUES = {
    "compile-cpu": {
        "max_difference": {"at_most": 1e-05},
        "kernel_libraries": {"at_least": 1},
    },
}


@pytest.mark.tier(0)
@pytest.mark.limit(300)
def test_compile_cpu(measure):
    """The result is correct, and the cache has a library built from the kernel, which a fallback would not
    leave."""
    import torch

    torch.manual_seed(0)
    x, y = torch.randn(64, 1000), torch.randn(64, 1000)
    compiled = torch.compile(_fused, fullgraph=True)
    difference = (compiled(x, y) - _fused(x, y)).abs().max().item()

    libraries = _kernel_libraries(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]))
    measure("max_difference", difference)
    measure("kernel_libraries", len(libraries))


def _fused(x, y):
    return (x * y).sin() + (x - y).relu()


def _kernel_libraries(cache):
    """Built libraries with the kernel's source beside them, without Inductor's probe of vector units."""
    return [
        library
        for library in cache.rglob("*.so")
        if any("sin" in source.read_text("utf-8", "replace") for source in library.parent.glob("*.cpp"))
    ]
