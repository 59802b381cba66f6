"""training-parts: every part of a training step agrees with FP64, in value and gradients."""

import pytest

VALUES = {
    "training-parts": {
        "device": {"equals": "cuda"},
        "parts": {"at_least": 152},
        "compared": {"at_least": 880},  # outputs and gradients, in FP32 and under autocast
        # FP32's error is below 2e-6 (sums of a few thousand products), TF32's 3e-4.
        "wrong_in_fp32": {"equals": {}},
        "largest_error_in_fp32": {"at_most": 5e-5},
        # FP16's error is about 5e-4 for each rounding.
        "wrong_under_autocast": {"equals": {}},
        "largest_error_under_autocast": {"at_most": 1e-2},
        "dropout_wrong": {"equals": 0},
        "dropout_share": {"at_least": 0.29, "at_most": 0.31},
        "optimizers": {"at_least": 29},
        # Rounding weights of about 1 to FP32 after each step of about 0.1.
        "wrong_steps": {"equals": {}},
        "largest_step_error": {"at_most": 1e-4},
    },
}
BOUNDS = {False: 5e-5, True: 1e-2}  # by autocast, as in VALUES
STEP_BOUND = 1e-4


@pytest.mark.tier(1)
def test_training_parts(measure):
    """Compare the outputs and gradients of each part, and the steps of each optimizer under a scaler, with
    FP64 on the CPU."""
    import torch

    from smoke_tests.optimizers import step_errors
    from smoke_tests.parts import parts, results
    from smoke_tests.torch_api import tensor_float

    tensor_float(False)
    every = parts()
    measure("device", torch.empty(1, device="cuda").device.type)
    measure("parts", len(every))
    errors = {False: {}, True: {}}
    for seed, part in enumerate(every):
        exact = results(part, seed, "cpu", torch.float64, False)
        for half in (False, True) if part.under_autocast else (False,):
            found = results(part, seed, "cuda", torch.float32, half)
            errors[half] |= _errors(part, found, exact)
    measure("compared", sum(map(len, errors.values())))
    for half, name in ((False, "in_fp32"), (True, "under_autocast")):
        _measure_errors(measure, f"wrong_{name}", f"largest_error_{name}", errors[half], BOUNDS[half])
    _dropout(measure, torch)
    steps = step_errors()
    measure("optimizers", len(steps))
    _measure_errors(measure, "wrong_steps", "largest_step_error", steps, STEP_BOUND)


def _errors(part, found, exact):
    """The relative error of each result of *part*. Where the exact result is 0, so must be the other."""
    from smoke_tests.closeness import relative_error

    assert found.keys() == exact.keys(), f"{part.name} gave {sorted(found)}, not {sorted(exact)}"
    return {
        f"{part.name}, {name}": relative_error(found[name], exact[name])
        if exact[name].any()
        else float(found[name].double().abs().max())
        for name in exact
    }


def _measure_errors(measure, wrong, largest, errors, bound):
    """NaN counts as wrong and as the largest error, because comparisons with NaN are false."""
    beyond = {name: error for name, error in errors.items() if not error <= bound}
    measure(wrong, beyond)
    measure(largest, max(errors.values(), key=lambda error: (error != error, error)))


def _dropout(measure, torch):
    """Dropout sets a share of the values to 0 and multiplies the others by 1 / (1 - share)."""
    ones = torch.ones(1000, 1000, device="cuda", requires_grad=True)
    left = torch.nn.functional.dropout(ones, 0.3)
    left.sum().backward()
    kept = left != 0
    expected = kept / 0.7
    off = ((left - expected).abs() > 1e-6) | ((ones.grad - expected).abs() > 1e-6)
    measure("dropout_wrong", int(off.sum()))
    measure("dropout_share", 1 - float(kept.float().mean()))
