"""memory: AMP needs less memory than FP32, the allocator frees its cache, and training does not leak."""

import pytest

STEPS = 20
BLOCK = 256 << 20  # bytes

VALUES = {
    "memory": {
        "device_fp32": {"equals": "cuda"},
        "device_amp": {"equals": "cuda"},
        "peaks": {"type": ["integer"]},
        "peak_ratio": {"at_most": 0.8},  # activations are nearly all of the memory, so about 0.55 is expected
        "held": {"type": ["integer"]},
        "reserved": {"type": ["integer"]},
        # Bytes; the activations of a step are 288 MiB.
        "growth": {"at_most": 1048576},
        "reserved_growth": {"at_most": 67108864},
        "free_of_driver": {"type": ["integer"]},  # other processes may use the GPU too
        "cached": {"at_least": 268435456},  # BLOCK
        "given_back": {"at_least": 268435456},
    },
}


@pytest.mark.tier(1)
def test_memory(measure):
    """Compare the peaks of a step in FP32 and AMP; measure bytes held after each of 20 steps; empty_cache."""
    import torch

    from smoke_tests.closeness import ratio
    from smoke_tests.training import peak

    _cache(measure)  # before other tensors share a segment with the block
    plain = peak(_stepper(measure, half=False))
    step = _stepper(measure, half=True)
    half = peak(step)
    measure("peaks", [plain, half])
    measure("peak_ratio", ratio(half, plain))
    held, reserved = [], []
    for _ in range(STEPS):
        step()
        torch.cuda.synchronize()
        held.append(torch.cuda.memory_allocated())
        reserved.append(torch.cuda.memory_reserved())
    measure("held", held)
    measure("reserved", reserved)
    measure("growth", max(held) - held[0])
    measure("reserved_growth", max(reserved) - reserved[0])


def _cache(measure):
    """After a tensor is deleted, the allocator keeps its block until empty_cache."""
    import torch

    torch.cuda.empty_cache()
    before, free = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]
    torch.empty(BLOCK, dtype=torch.uint8, device="cuda")
    cached = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    after = torch.cuda.memory_reserved()
    measure("free_of_driver", [free, torch.cuda.mem_get_info()[0]])
    measure("cached", cached - before)
    measure("given_back", cached - after)


def _stepper(measure, *, half):
    """A training step that has run once, so that the optimizer and libraries have allocated their memory."""
    import torch

    from smoke_tests.torch_api import grad_scaler
    from smoke_tests.training import device_of, tower

    model, inputs = tower()
    measure("device_amp" if half else "device_fp32", device_of(model))
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = grad_scaler(enabled=half)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16, enabled=half):
            loss = model(inputs).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    for _ in range(3):
        step()
    return step
