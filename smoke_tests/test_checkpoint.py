"""checkpoint: recomputing activations saves memory and does not change gradients."""

import pytest

SEED = 1

VALUES = {
    "checkpoint": {
        "device": {"equals": "cuda"},
        "calls": {"equals": [8, 16]},  # one for each block, then two
        # The same kernels on the same numbers; equal bits are not required, because a library may choose
        # other kernels.
        "gradient_error": {"at_most": 1e-5},
        "peaks": {"type": ["integer"]},
        # Only the activations of one block and the inputs of the others are in memory at a time: about a
        # third.
        "peak_ratio": {"at_most": 0.6},
    },
}


@pytest.mark.tier(1)
def test_checkpoint(measure):
    """Every block runs twice with the same dropout; the gradient is the same, the peak memory lower."""
    from torch.utils.checkpoint import checkpoint

    from smoke_tests.closeness import ratio, relative_error
    from smoke_tests.training import device_of, tower

    model, inputs = tower(dropout=0.1)
    measure("device", device_of(model))

    def kept(block, x):
        return block(x)

    def again(block, x):
        return checkpoint(block, x, use_reentrant=False)

    # A first run, because memory that libraries allocate at their first call must not count.
    _run(model, inputs, kept)
    plain, expected, calls = _run(model, inputs, kept)
    saved, found, calls_again = _run(model, inputs, again)
    measure("calls", [calls, calls_again])
    measure("gradient_error", relative_error(found, expected))
    measure("peaks", [plain, saved])
    measure("peak_ratio", ratio(saved, plain))


def _run(model, inputs, through):
    """Run forward and backward, each block by *through*: peak memory in bytes, gradient, calls of blocks."""
    import torch

    from smoke_tests.training import gradient, peak

    calls = []
    hooks = [block.register_forward_pre_hook(lambda *_: calls.append(1)) for block in model]

    def step():
        x = inputs
        for block in model:
            x = through(block, x)
        x.square().mean().backward()

    torch.manual_seed(SEED)
    model.zero_grad()
    height = peak(step)
    for hook in hooks:
        hook.remove()
    return height, gradient(model), len(calls)
