"""accumulate: the accumulated gradients of small batches equal those of the large batch."""

import pytest

PARTS = 4

VALUES = {
    "accumulate": {
        "device": {"equals": "cuda"},
        # Each rounding to FP16 changes a value by at most 2**-11, and few roundings separate the two
        # gradients.
        "gradient_error": {"at_most": 5e-3},
        "step_error": {"at_most": 5e-3},
        "fp32_error": {"at_most": 1e-2},
        "errors_alone": {"type": ["number"]},
        "least_error_alone": {"at_least": 0.1},
    },
}


@pytest.mark.tier(1)
def test_accumulate(measure):
    """Compare four micro-batches under AMP, each loss divided by four, with one batch of all rows."""
    from smoke_tests.closeness import relative_error
    from smoke_tests.training import ROWS, Regression, device_of

    task = Regression()
    exact = task.exact_gradient()
    measure("device", device_of(task.model))
    whole, whole_step = _accumulated([slice(ROWS)])
    size = ROWS // PARTS
    parts = [slice(at, at + size) for at in range(0, ROWS, size)]
    summed, summed_step = _accumulated(parts)
    measure("gradient_error", relative_error(summed, whole))
    measure("step_error", relative_error(summed_step, whole_step))
    measure("fp32_error", relative_error(summed, exact))
    # No part alone may give the full gradient, or the check would not detect a missing accumulation.
    alone = [relative_error(_accumulated([part])[0], whole) for part in parts]
    measure("errors_alone", alone)
    measure("least_error_alone", min(alone))


def _accumulated(parts):
    """The gradient of the mean over *parts* after one unscale_, and the length of the step."""
    from smoke_tests.torch_api import grad_scaler
    from smoke_tests.training import Regression, gradient, weights

    task, scaler = Regression(), grad_scaler()
    before = weights(task.model)
    for part in parts:
        scaler.scale(task.loss(part) / len(parts)).backward()
    scaler.unscale_(task.optimizer)
    found = gradient(task.model)
    scaler.step(task.optimizer)
    scaler.update()
    return found, weights(task.model) - before
