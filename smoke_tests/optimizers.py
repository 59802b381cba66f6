"""Steps of every optimizer under a GradScaler, compared with FP64.

Imports torch; import it inside a check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from smoke_tests.closeness import relative_error
from smoke_tests.torch_api import grad_scaler, tuple_of

STEPS = 5
_SHAPES = ((40, 30), (30,), (7, 5, 3))
_Kind = Callable[..., torch.optim.Optimizer]
# A large eps, because without it the step of Adam and its relatives does not depend on the gradients' scale.
_EPS = 0.1
KINDS: Mapping[str, tuple[_Kind, dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD, Nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "Adam": (torch.optim.Adam, {"lr": 0.1, "eps": _EPS, "weight_decay": 0.01}),
    "Adam, amsgrad": (torch.optim.Adam, {"lr": 0.1, "eps": _EPS, "amsgrad": True}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.1, "eps": _EPS, "weight_decay": 0.1}),
    "NAdam": (torch.optim.NAdam, {"lr": 0.1, "eps": _EPS}),
    "RAdam": (torch.optim.RAdam, {"lr": 0.1, "eps": _EPS}),
    "Adamax": (torch.optim.Adamax, {"lr": 0.1, "eps": _EPS}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1, "eps": _EPS}),
    "Adadelta": (torch.optim.Adadelta, {"lr": 0.1, "eps": _EPS}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.1, "eps": _EPS, "momentum": 0.9}),
    "Rprop": (torch.optim.Rprop, {"lr": 0.1}),
    "ASGD": (torch.optim.ASGD, {"lr": 0.1}),
}


def implementations(name: str) -> list[str]:
    """The implementations of the optimizer on a GPU."""
    fused = name.startswith("Adam") and name not in ("Adamax",)
    fused = fused or (name.startswith("SGD") and tuple_of(torch.__version__) >= (2, 3))
    return ["single", "foreach", *(["fused"] if fused else [])]


def step_errors() -> dict[str, float]:
    """The relative error of the sum of the steps, by optimizer and implementation."""
    found = {}
    for name, (kind, options) in KINDS.items():
        exact = _moved(kind, options | {"foreach": False}, "cpu", torch.float64)
        for how in implementations(name):
            switches = {"foreach": how == "foreach", **({"fused": True} if how == "fused" else {})}
            moved = _moved(kind, options | switches, "cuda", torch.float32)
            found[f"{name}, {how}"] = relative_error(moved, exact)
    return found


def _moved(kind: _Kind, options: dict[str, Any], place: str, dtype: torch.dtype) -> torch.Tensor:
    """The change of all weights by the steps; on the GPU with a scaler, whose scale grows meanwhile."""
    torch.manual_seed(0)
    weights = [torch.randn(shape).to(place, dtype).requires_grad_() for shape in _SHAPES]
    start = [weight.detach().clone() for weight in weights]
    optimizer, scaler = kind(weights, **options), grad_scaler(growth_interval=2, enabled=place == "cuda")
    for _ in range(STEPS):
        optimizer.zero_grad()
        slopes = [torch.randn(shape).to(place, dtype) for shape in _SHAPES]
        # The gradient is the slope times the scale, a power of two, without any rounding.
        loss = sum((weight * slope).sum() for weight, slope in zip(weights, slopes, strict=True))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    pairs = zip(weights, start, strict=True)
    return torch.cat([(weight.detach() - first).flatten() for weight, first in pairs]).cpu()
