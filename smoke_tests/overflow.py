"""Steps of two optimizers with one GradScaler, in which one gradient is not finite.

Imports torch; import it inside a check.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from smoke_tests.torch_api import grad_scaler
from smoke_tests.training import Regression, scaled_step, weights

# Every torch from 2.0 on has these. To a fused optimizer, the scaler passes its scale and whether it found an
# inf, and the optimizer skips the step; for other optimizers, the scaler does not call the step.
OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=False),
    "SGD foreach": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True),
    "AdamW foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=True),
    "AdamW fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
}
POISONS = ("nan", "inf", "-inf")
# The parameter (one of the four of a Regression), and the element of its gradient.
PLACES = {"first": (0, 0), "middle": (2, 1000), "last": (3, -1)}


class Overflow(NamedTuple):
    """The effect of a step in which one gradient of one of two optimizers is not finite."""

    case: str
    moved: int  # number of weights and state values of this optimizer whose bits changed
    moved_other: int  # the same of the other optimizer, whose gradients are finite
    scale_ratio: float  # the scale after the step divided by the one before
    moved_afterwards: int  # as `moved`, in this optimizer's next step; 0 if a weight is not finite after it


def overflows() -> list[Overflow]:
    """The effects for each optimizer: each value in each place, in the first and in the second of two
    optimizers."""
    return [_overflow(*case) for case in itertools.product(OPTIMIZERS, POISONS, PLACES, (0, 1))]


def _overflow(kind: str, poison: str, place: str, index: int) -> Overflow:
    tasks, scaler = (_task(kind), _task(kind)), grad_scaler()
    scaled_step(scaler, *tasks)  # an optimizer creates its state in its first step
    poisoned, other = tasks[index], tasks[1 - index]
    scale, before, before_other = scaler.get_scale(), _state(poisoned), _state(other)
    scaled_step(scaler, *tasks, spoil=lambda: _spoil(poisoned, poison, place))
    ratio, after, after_other = scaler.get_scale() / scale, _state(poisoned), _state(other)
    scaled_step(scaler, *tasks)
    finite = bool(weights(poisoned.model).isfinite().all())
    return Overflow(
        case=f"{kind}: {poison} in the {place} gradient of optimizer {index + 1}",
        moved=_changed(before, after),
        moved_other=_changed(before_other, after_other),
        scale_ratio=ratio,
        moved_afterwards=_changed(after, _state(poisoned)) if finite else 0,
    )


def _task(kind: str) -> Regression:
    task = Regression()
    task.optimizer = OPTIMIZERS[kind](task.model.parameters())
    return task


def _spoil(task: Regression, poison: str, place: str) -> None:
    parameter, element = PLACES[place]
    list(task.model.parameters())[parameter].grad.view(-1)[element] = float(poison)


def _state(task: Regression) -> torch.Tensor:
    """The bits of all weights and of the optimizer's state."""
    states = [task.optimizer.state[parameter] for parameter in task.model.parameters()]
    values = [value.flatten().to(weights(task.model).device) for state in states for value in state.values()]
    return torch.cat([weights(task.model), *values]).view(torch.int32)


def _changed(before: torch.Tensor, after: torch.Tensor) -> int:
    return int((before != after).sum())
