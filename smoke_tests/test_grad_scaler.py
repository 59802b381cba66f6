"""grad-scaler, clip: gradients are scaled, the scale adapts, and unscaled gradients are correct."""

import pytest

INTERVAL = 3  # steps without overflow until the scale grows; by default 2000
TINY = 2.0**-28  # FP16 rounds it to 0, and represents its product with 65536 exactly

VALUES = {
    "grad-scaler": {
        "device": {"equals": "cuda"},
        "is_enabled": {"equals": True},
        "first_scale": {"equals": 65536.0},
        "scaled_over_loss": {"equals": 1.0},
        "finite_gradients": {"equals": True},
        "gradient_error": {"at_most": 1e-2},  # FP16's error: about 1e-3
        "master_weights": {"equals": ["torch.float32"]},
        "moved_error": {"at_most": 1e-2},  # the rate is 1
        "scales": {"equals": [65536.0, 65536.0, 131072.0]},
        # From overflow.py: the number of cases, and the cases that fail.
        "overflows": {"equals": 72},
        "moved_by_overflow": {"equals": {}},
        "scale_not_halved": {"equals": {}},
        "other_not_moved": {"equals": []},
        "not_moved_afterwards": {"equals": []},
        "left_without_scale": {"equals": 0},
        "error_with_scale": {"at_most": 1e-2},
    },
    "clip": {
        "device": {"equals": "cuda"},
        "true_norm": {"at_least": 1e-3},
        "returned_norm": {"at_least": 0.99, "at_most": 1.01},  # FP16's error: about 1e-3
        "norm_after": {"at_least": 0.99, "at_most": 1.001},
        "moved_after": {"at_least": 0.99, "at_most": 1.01},  # the rate is 1
        "norm_before": {"at_most": 1e-3},
        "norm_before_small": {"at_least": 2.0},
    },
}


@pytest.mark.tier(1)
def test_grad_scaler(measure):
    """Gradients are scaled by 65536 and unscaled correctly, even if FP16 would round them to 0. The scale
    grows, and halves if a gradient is not finite."""
    from smoke_tests.torch_api import grad_scaler
    from smoke_tests.training import Regression, device_of, scaled_step

    task, scaler = Regression(), grad_scaler(growth_interval=INTERVAL)
    measure("device", device_of(task.model))
    measure("is_enabled", scaler.is_enabled())
    measure("first_scale", scaler.get_scale())
    _first_step(measure, task, scaler)
    scales = [scaler.get_scale()]
    while len(scales) < INTERVAL:
        scaled_step(scaler, task)
        scales.append(scaler.get_scale())
    measure("scales", scales)
    _overflows(measure)
    _underflow(measure)


@pytest.mark.tier(1)
def test_clip(measure):
    """Clipping after unscale_ gives the limit as the norm; before unscale_, a far smaller or larger norm."""
    from smoke_tests.torch_api import grad_scaler
    from smoke_tests.training import Regression, device_of

    task = Regression()
    norm = float(task.exact_gradient().norm())
    limit = norm / 4
    measure("device", device_of(task.model))
    measure("true_norm", norm)
    returned, left, moved = _clipped(grad_scaler(), limit, unscale_first=True)
    measure("returned_norm", returned / norm)  # FP16's error: about 1e-3
    measure("norm_after", left / limit)
    measure("moved_after", moved / limit)  # the rate is 1
    # Before unscale_ the limit applies to scaled gradients: with the scale 65536 the step is nearly 0, with a
    # scale below 1 the true norm is above the limit.
    measure("norm_before", _clipped(grad_scaler(), limit, unscale_first=False)[1] / limit)
    small = grad_scaler(init_scale=2.0**-4)
    measure("norm_before_small", _clipped(small, limit, unscale_first=False)[1] / limit)


def _first_step(measure, task, scaler):
    """Do one training step, and measure what each call of the scaler changes."""
    from smoke_tests.closeness import relative_error
    from smoke_tests.training import gradient, weights

    exact, before = task.exact_gradient(), weights(task.model)
    loss = task.loss()
    scaled = scaler.scale(loss)
    measure("scaled_over_loss", scaled.item() / loss.item() / scaler.get_scale())
    scaled.backward()
    scaler.unscale_(task.optimizer)
    found = gradient(task.model)
    measure("finite_gradients", bool(found.isfinite().all()))
    measure("gradient_error", relative_error(found, exact))  # FP16's error: about 1e-3
    scaler.step(task.optimizer)
    scaler.update()
    dtypes = {str(parameter.dtype) for parameter in task.model.parameters()}
    measure("master_weights", sorted(dtypes))
    measure("moved_error", relative_error(before - weights(task.model), exact))  # the rate is 1


def _overflows(measure):
    """One of thousands of gradients is not finite: no bit of its optimizer's weights and state changes, the
    other optimizer makes its step, the scale halves, and training continues."""
    from smoke_tests.overflow import overflows

    results = overflows()
    measure("overflows", len(results))
    measure("moved_by_overflow", {result.case: result.moved for result in results if result.moved})
    ratios = {result.case: result.scale_ratio for result in results if result.scale_ratio != 0.5}
    measure("scale_not_halved", ratios)
    measure("other_not_moved", [result.case for result in results if not result.moved_other])
    measure("not_moved_afterwards", [result.case for result in results if not result.moved_afterwards])


def _underflow(measure):
    """Gradients of 2**-28: without a scale FP16 rounds each to 0, with a scale they are right."""
    import torch

    from smoke_tests.closeness import relative_error
    from smoke_tests.torch_api import grad_scaler

    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 64, bias=False).cuda()
    inputs = torch.randn(64, 64, device="cuda")
    exact = TINY * inputs.double().sum(0).expand(64, 64)

    def loss():
        layer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            return (layer(inputs).float() * TINY).sum()

    loss().backward()
    measure("left_without_scale", int(layer.weight.grad.count_nonzero()))
    scaler = grad_scaler()
    scaler.scale(loss()).backward()
    scaler.unscale_(torch.optim.SGD(layer.parameters(), lr=1.0))
    measure("error_with_scale", relative_error(layer.weight.grad, exact))


def _clipped(scaler, limit, *, unscale_first):
    """A step clipped to *limit*: the returned norm, the norm afterwards, and the length of the step."""
    import torch

    from smoke_tests.training import Regression, gradient, weights

    task = Regression()
    before = weights(task.model)
    scaler.scale(task.loss()).backward()
    if unscale_first:
        scaler.unscale_(task.optimizer)
    returned = torch.nn.utils.clip_grad_norm_(task.model.parameters(), limit)
    if not unscale_first:
        scaler.unscale_(task.optimizer)
    left = gradient(task.model).norm()
    scaler.step(task.optimizer)
    return float(returned), float(left), float((weights(task.model) - before).norm())
