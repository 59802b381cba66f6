"""The distance of torch's random numbers on the GPU from their distributions. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

COUNT = 100_000
_Distribution = Callable[[torch.Tensor], torch.Tensor]
_ROOT = math.sqrt(2.0)
# The function that fills a tensor, and the distribution function of its numbers.
CONTINUOUS: Mapping[str, tuple[Callable[[torch.Tensor], object], _Distribution]] = {
    "uniform_": (lambda to: to.uniform_(-1, 3), lambda x: (x + 1) / 4),
    "normal_": (lambda to: to.normal_(1, 2), lambda x: 0.5 * (1 + torch.erf((x - 1) / 2 / _ROOT))),
    "exponential_": (lambda to: to.exponential_(0.5), lambda x: 1 - torch.exp(-0.5 * x)),
    "cauchy_": (lambda to: to.cauchy_(1, 2), lambda x: 0.5 + torch.atan((x - 1) / 2) / math.pi),
    "log_normal_": (lambda to: to.log_normal_(0, 1), lambda x: 0.5 * (1 + torch.erf(x.log() / _ROOT))),
    "rand": (lambda to: to.copy_(torch.rand(to.shape, device=to.device)), lambda x: x),
    "randn": (
        lambda to: to.copy_(torch.randn(to.shape, device=to.device)),
        lambda x: 0.5 * (1 + torch.erf(x / _ROOT)),
    ),
    "gamma": (  # of shape 1, which is an exponential distribution
        lambda to: to.copy_(torch._standard_gamma(torch.ones_like(to))),
        lambda x: 1 - torch.exp(-x),
    ),
}
# The function that draws whole numbers, and the shares of 0, 1, 2, ...; the rest is the share of all others.
DISCRETE: Mapping[str, tuple[Callable[[torch.Tensor], torch.Tensor], list[float]]] = {
    "bernoulli_": (lambda to: to.bernoulli_(0.3), [0.7, 0.3]),
    "geometric_": (lambda to: to.geometric_(0.4), [0.0, 0.4, 0.24, 0.144, 0.0864]),
    "poisson": (
        lambda to: torch.poisson(to.fill_(2.0)),
        [math.exp(-2.0) * 2.0**k / math.factorial(k) for k in range(6)],
    ),
    "randint": (lambda to: torch.randint(0, 5, to.shape, device=to.device), [0.2] * 5),
    "multinomial": (
        lambda to: torch.multinomial(
            torch.tensor([0.1, 0.2, 0.3, 0.4], device=to.device), to.numel(), replacement=True
        ),
        [0.1, 0.2, 0.3, 0.4],
    ),
}


def distances() -> dict[str, float]:
    """How far each function's numbers are from their distribution, as a multiple of 1 / sqrt(COUNT).

    Chance exceeds 2.5 once in 150,000 draws (Kolmogorov-Smirnov); the seed is fixed.
    """
    torch.manual_seed(0)
    found = {}
    for name, (fill, distribution) in CONTINUOUS.items():
        numbers = torch.empty(COUNT, device="cuda")
        fill(numbers)
        below = distribution(numbers.double().cpu().sort().values)
        steps = torch.arange(COUNT + 1).double() / COUNT
        found[name] = float(torch.maximum((below - steps[:-1]).abs(), (steps[1:] - below).abs()).max())
    for name, (draw, shares) in DISCRETE.items():
        numbers = draw(torch.empty(COUNT, device="cuda")).cpu()
        seen = torch.stack([(numbers == value).double().mean() for value in range(len(shares))])
        found[name] = float((seen - torch.tensor(shares).double()).abs().max())
    return {name: distance * math.sqrt(COUNT) for name, distance in found.items()}


def repeated() -> tuple[int, int]:
    """How many of 1000 numbers differ after the same seed, and how many are equal after another seed."""

    def drawn(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.randn(1000, device="cuda")

    first = drawn(1)
    return int((first != drawn(1)).sum()), int((first == drawn(2)).sum())


def permutation_faults() -> int:
    """How many places of a random permutation are wrong when sorted; all, if it is in order already."""
    places = torch.randperm(10_000, device="cuda")
    ordered = torch.arange(10_000, device="cuda")
    return 10_000 if torch.equal(places, ordered) else int((places.sort().values != ordered).sum())
