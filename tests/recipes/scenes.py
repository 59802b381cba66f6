"""Functions for tests of the recipes: they run code with the recipes imported, or a training run."""

from __future__ import annotations

from typing import Any

from tests.recipes.torch_python import result_of

START = """
import dataclasses
from recipes import checkpoint, data, fp8, memory, parallel, precision, train
from recipes.settings import Settings, Unavailable, parse
from torch import nn
from torch.nn import functional
cpu, alone = torch.device("cpu"), parallel.World()

def gradient(training):
    return torch.cat([parameter.grad.flatten() for parameter in training.model.parameters()])

def distance(a, b):
    return float((a - b).norm() / b.norm())

def batch_of(settings):
    return next(data.batches(settings, alone, cpu, 0))
"""


def scene(code: str) -> Any:
    """Run *code* with the recipes imported; returns the value of its variable `result`."""
    return result_of(START + code)


def train(*words: str, before: str = "") -> dict[str, Any]:
    """Run recipes/train.py with the options *words*; returns the values that it reports."""
    found = scene(f"{before}\nresult = train.run(parse({['--device', 'cpu', *words]!r}))")
    assert isinstance(found, dict)
    return found
