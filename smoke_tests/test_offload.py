"""offload: keeping activations in the host's memory until the backward pass saves memory on the GPU."""

import contextlib

import pytest


@pytest.mark.tier(1)
def test_offload(measure):
    """save_on_cpu to pinned memory: the gradient is the same, the peak on the GPU lower."""
    from torch.autograd.graph import save_on_cpu

    from smoke_tests.closeness import relative_error
    from smoke_tests.training import device_of, tower

    model, inputs = tower()
    measure("device", device_of(model), equals="cuda")
    # The memory that libraries allocate at their first call must not count.
    _run(model, inputs, contextlib.nullcontext())
    plain, wanted = _run(model, inputs, contextlib.nullcontext())
    saved, found = _run(model, inputs, save_on_cpu(pin_memory=True))
    # The same kernels on the same numbers; not required bit by bit, because a library may choose others.
    measure("gradient_error", relative_error(found, wanted), at_most=1e-5)
    measure("peaks", [plain, saved])
    # What one operation works on is all that stays: a quarter is expected.
    measure("peak_ratio", saved / plain, at_most=0.6)


def _run(model, inputs, saving):
    """Forward under *saving*, then backward: the peak in bytes, the gradient."""
    from smoke_tests.training import gradient, peak

    def step():
        with saving:
            loss = model(inputs).square().mean()
        loss.backward()

    model.zero_grad()
    return peak(step), gradient(model)
