"""offload: keeping activations in the host's memory until the backward pass saves memory on the GPU."""

import contextlib

import pytest

VALUES = {
    "offload": {
        "device": {"equals": "cuda"},
        # The same kernels on the same numbers; equal bits are not required, because a library may choose
        # other kernels.
        "gradient_error": {"at_most": 1e-5},
        "peaks": {"type": ["integer"]},
        # Only the operands of one operation stay on the GPU, so a quarter is expected.
        "peak_ratio": {"at_most": 0.6},
    },
}


@pytest.mark.tier(1)
def test_offload(measure):
    """With save_on_cpu to pinned memory, the gradient is the same and the GPU's peak memory is lower."""
    from torch.autograd.graph import save_on_cpu

    from smoke_tests.closeness import ratio, relative_error
    from smoke_tests.training import device_of, tower

    model, inputs = tower()
    measure("device", device_of(model))
    # The memory that libraries allocate at their first call must not count.
    _run(model, inputs, contextlib.nullcontext())
    plain, expected = _run(model, inputs, contextlib.nullcontext())
    saved, found = _run(model, inputs, save_on_cpu(pin_memory=True))
    measure("gradient_error", relative_error(found, expected))
    measure("peaks", [plain, saved])
    measure("peak_ratio", ratio(saved, plain))


def _run(model, inputs, saving):
    """Run forward under *saving*, then backward: peak memory in bytes, gradient."""
    from smoke_tests.training import gradient, peak

    def step():
        with saving:
            loss = model(inputs).square().mean()
        loss.backward()

    model.zero_grad()
    return peak(step), gradient(model)
