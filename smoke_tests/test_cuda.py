"""cuda: torch finds every GPU of the driver, and its kernels run on each."""

import pytest

from smoke_tests.gpus import serves
from smoke_tests.probe import probe

VALUES = {
    "cuda": {
        "torch": {"type": "string"},
        "build_cuda": {"type": "string"},
        "driver_cuda": {"type": "string"},
        "is_available": {"equals": True},
        "exposed": {"expected": "gpus"},
        "device_count": {"expected": "gpus"},
        "names": {"expected": "gpu_names"},
        "capabilities": {"expected": "gpu_capabilities"},
        "archs": {"type": ["string"]},
        "served": {"expected": "true_on_each"},
        "wrong_sums": {"expected": "zero_on_each"},
        # The error of FP32 is about 1e-6, that of TF32 3e-4. NVIDIA_TF32_OVERRIDE=1 overrides torch's
        # setting.
        "fp32_product_error": {"at_most": 1e-5},
    },
}


@pytest.mark.tier(1)
def test_cuda(measure):
    """torch finds the GPUs that the driver lists, has code for each, and computes an exact result on each.
    FP32 products are not computed in TF32."""
    import torch

    from smoke_tests.finetune import product_error
    from smoke_tests.torch_api import tuple_of

    driver = probe("driver")  # a process without torch, for an independent result
    exposed = driver["gpus"]
    measure("torch", torch.__version__)
    measure("build_cuda", torch.version.cuda)
    measure("driver_cuda", driver["cuda"])
    measure("is_available", torch.cuda.is_available())
    measure("exposed", len(exposed))
    measure("device_count", torch.cuda.device_count())
    assert torch.cuda.is_available(), "torch reaches no GPU (is_available is False)"

    found = [torch.cuda.get_device_properties(at) for at in range(torch.cuda.device_count())]
    measure("names", [gpu.name for gpu in found])
    capabilities = [[gpu.major, gpu.minor] for gpu in found]
    measure("capabilities", capabilities)
    # A driver compiles PTX only if the driver is as new as the compiler that made the PTX.
    jit = tuple_of(driver["cuda"]) >= tuple_of(torch.version.cuda)
    archs = torch.cuda.get_arch_list()
    measure("archs", archs)
    served = [serves(archs, tuple(capability), jit=jit) for capability in capabilities]
    measure("served", served)
    measure("wrong_sums", [_wrong(torch, at) for at in range(len(found))])
    measure("fp32_product_error", product_error("fp32"))


def _wrong(torch, at):
    """How many of the first million triangular numbers, summed on GPU *at*, differ from Gauss's."""
    sums = torch.cumsum(torch.arange(1_000_000, dtype=torch.int64, device=f"cuda:{at}"), 0).cpu()
    steps = torch.arange(1_000_000, dtype=torch.int64)
    return int((sums != steps * (steps + 1) // 2).sum())
