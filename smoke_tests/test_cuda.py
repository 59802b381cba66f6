"""cuda: torch finds every GPU of the driver, and its kernels run on each."""

import pytest

from smoke_tests.gpus import serves
from smoke_tests.probe import probe


@pytest.mark.tier(1)
def test_cuda(measure):
    """torch finds the GPUs that the driver lists, has code for each, and computes an exact result on each."""
    import torch

    from smoke_tests.torch_api import tuple_of

    driver = probe("driver")  # a process without torch, for an independent result
    exposed = driver["gpus"]
    measure("torch", torch.__version__)
    measure("build_cuda", torch.version.cuda)
    measure("driver_cuda", driver["cuda"])
    measure("is_available", torch.cuda.is_available(), equals=True)
    measure("exposed", len(exposed), at_least=1)
    measure("device_count", torch.cuda.device_count(), equals=len(exposed))
    assert torch.cuda.is_available(), "torch reaches no GPU (is_available is False)"

    found = [torch.cuda.get_device_properties(at) for at in range(torch.cuda.device_count())]
    measure("names", [gpu.name for gpu in found], equals=[gpu["name"] for gpu in exposed])
    capabilities = [[gpu.major, gpu.minor] for gpu in found]
    measure("capabilities", capabilities, equals=[gpu["capability"] for gpu in exposed])
    # A driver turns PTX into code only if it is as new as the compiler that wrote the PTX.
    jit = tuple_of(driver["cuda"]) >= tuple_of(torch.version.cuda)
    archs = torch.cuda.get_arch_list()
    measure("archs", archs)
    served = [serves(archs, tuple(one), jit=jit) for one in capabilities]
    measure("served", served, equals=[True] * len(exposed))
    measure("wrong_sums", [_wrong(torch, at) for at in range(len(found))], equals=[0] * len(exposed))


def _wrong(torch, at):
    """How many of the first million triangular numbers, summed on GPU *at*, differ from Gauss's."""
    sums = torch.cumsum(torch.arange(1_000_000, dtype=torch.int64, device=f"cuda:{at}"), 0).cpu()
    steps = torch.arange(1_000_000, dtype=torch.int64)
    return int((sums != steps * (steps + 1) // 2).sum())
