"""grad-scaler, clip: gradients are scaled, the scale adapts, and unscaled gradients are correct."""

import pytest

INTERVAL = 3  # steps without overflow until the scale grows; by default 2000
TINY = 2.0**-28  # FP16 keeps nothing below 2**-25, and of this times 65536 every bit


@pytest.mark.tier(1)
def test_grad_scaler(measure):
    """Scaled by 65536, unscaled to the true gradient; grows, backs off, and saves what FP16 would lose."""
    from smoke_tests.torch_api import grad_scaler
    from smoke_tests.training import Regression, device_of

    task, scaler = Regression(), grad_scaler(growth_interval=INTERVAL)
    measure("device", device_of(task.model), equals="cuda")
    measure("is_enabled", scaler.is_enabled(), equals=True)
    measure("first_scale", scaler.get_scale(), equals=65536.0)
    _first_step(measure, task, scaler)
    scales = [scaler.get_scale()]
    while len(scales) < INTERVAL:
        _step(task, scaler)
        scales.append(scaler.get_scale())
    measure("scales", scales, equals=[65536.0] * (INTERVAL - 1) + [131072.0])
    _overflow(measure, task, scaler)
    _underflow(measure)


@pytest.mark.tier(1)
def test_clip(measure):
    """Clipped after unscale_, the true norm is the limit's; before it, far less, or there is no limit."""
    from smoke_tests.torch_api import grad_scaler
    from smoke_tests.training import Regression, device_of

    task = Regression()
    norm = float(task.exact_gradient().norm())
    limit = norm / 4
    measure("device", device_of(task.model), equals="cuda")
    measure("true_norm", norm, at_least=1e-3)
    told, left, moved = _clipped(grad_scaler(), limit, unscale_first=True)
    measure("told_norm", told / norm, at_least=0.99, at_most=1.01)  # FP16 gradients: some 1e-3 off
    measure("norm_after", left / limit, at_least=0.99, at_most=1.001)
    measure("moved_after", moved / limit, at_least=0.99, at_most=1.01)  # the rate is 1
    # Clipping what is still scaled holds the limit against another number: scaled by 65536 the step all but
    # vanishes, and where the scale has backed off below 1 the true norm stays above the limit.
    measure("norm_before", _clipped(grad_scaler(), limit, unscale_first=False)[1] / limit, at_most=1e-3)
    small = grad_scaler(init_scale=2.0**-4)
    measure("norm_before_small", _clipped(small, limit, unscale_first=False)[1] / limit, at_least=2.0)


def _first_step(measure, task, scaler):
    """The effect of each call of the scaler in one step."""
    from smoke_tests.closeness import relative_error
    from smoke_tests.training import gradient, weights

    exact, before = task.exact_gradient(), weights(task.model)
    loss = task.loss()
    scaled = scaler.scale(loss)
    measure("scaled_over_loss", scaled.item() / loss.item(), equals=scaler.get_scale())
    scaled.backward()
    scaler.unscale_(task.optimizer)
    found = gradient(task.model)
    measure("finite_gradients", bool(found.isfinite().all()), equals=True)
    measure("gradient_error", relative_error(found, exact), at_most=1e-2)  # of FP16: some 1e-3
    scaler.step(task.optimizer)
    scaler.update()
    dtypes = {str(parameter.dtype) for parameter in task.model.parameters()}
    measure("master_weights", sorted(dtypes), equals=["torch.float32"])
    measure("moved_error", relative_error(before - weights(task.model), exact), at_most=1e-2)  # the rate is 1


def _step(task, scaler, spoil=lambda model: None):
    """A step, with *spoil* called before the scaler checks the gradients; the number of changed weights."""
    from smoke_tests.training import weights

    before = weights(task.model)
    task.optimizer.zero_grad()
    scaler.scale(task.loss()).backward()
    spoil(task.model)
    scaler.step(task.optimizer)
    scaler.update()
    return int((weights(task.model) != before).sum())


def _overflow(measure, task, scaler):
    """One infinite gradient among thousands: no weight changes by a bit, the scale halves, and it goes on."""
    scale = scaler.get_scale()
    measure("moved_by_inf", _step(task, scaler, _one_inf), equals=0)
    measure("backed_off", scaler.get_scale() / scale, equals=0.5)
    measure("moved_afterwards", _step(task, scaler), at_least=1)


def _one_inf(model):
    next(model.parameters()).grad[0, 0] = float("inf")


def _underflow(measure):
    """Gradients of 2**-28: without a scale FP16 turns every one into 0, with it they come out right."""
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
    measure("left_without_scale", int(layer.weight.grad.count_nonzero()), equals=0)
    scaler = grad_scaler()
    scaler.scale(loss()).backward()
    scaler.unscale_(torch.optim.SGD(layer.parameters(), lr=1.0))
    measure("error_with_scale", relative_error(layer.weight.grad, exact), at_most=1e-2)


def _clipped(scaler, limit, *, unscale_first):
    """A step clipped to *limit*: the returned norm, the norm afterwards, and the length of the step."""
    import torch

    from smoke_tests.training import Regression, gradient, weights

    task = Regression()
    before = weights(task.model)
    scaler.scale(task.loss()).backward()
    if unscale_first:
        scaler.unscale_(task.optimizer)
    told = torch.nn.utils.clip_grad_norm_(task.model.parameters(), limit)
    if not unscale_first:
        scaler.unscale_(task.optimizer)
    left = gradient(task.model).norm()
    scaler.step(task.optimizer)
    return float(told), float(left), float((weights(task.model) - before).norm())
