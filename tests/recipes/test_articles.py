"""Statements of amp-mistakes.md and docs/recipes.md about what readers of articles look for."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.recipes.torch_python import needs_torch, result_of
from torchkiln.util.places import ROOT

pytestmark = needs_torch
RECIPES = (ROOT / "docs/recipes.md").read_text()


def test_the_names_in_torch_cuda_amp_warn() -> None:
    """Once for a line; in each iteration if something in the loop changes the filters of warnings."""
    code = """
import io, contextlib, warnings
def printed(name, between):
    shown = io.StringIO()
    warnings.resetwarnings()
    with contextlib.redirect_stderr(shown):
        for _ in range(3):
            getattr(torch.cuda.amp, name)(enabled=False)
            between()
    return shown.getvalue().count("FutureWarning")
def changed():
    with warnings.catch_warnings():
        pass
result = [printed(name, b) for name in ("autocast", "GradScaler") for b in (int, changed)]
warnings.simplefilter("error")
with torch.autocast("cuda", enabled=False):
    torch.amp.GradScaler("cuda", enabled=False)
"""
    assert result_of(code) == [1, 3, 1, 3]


def test_bits_of_the_formats() -> None:
    """The fraction has -log2(eps) bits; the exponents of BF16 and FP32 are equal."""
    code = """
import math
bits = lambda kind: int(-math.log2(torch.finfo(kind).eps))
exponent = lambda kind: round(math.log2(torch.finfo(kind).max))
kinds = torch.bfloat16, torch.float16, torch.float32
result = [[bits(kind), exponent(kind)] for kind in kinds]
"""
    assert result_of(code) == [[7, 128], [10, 16], [23, 128]]


def test_half_with_a_scaler() -> None:
    code = """
model, x = torch.nn.Linear(4, 4).half(), torch.ones(2, 4).half()
scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD(model.parameters())
scaler.scale(model(x).float().mean()).backward()
try:
    scaler.step(optimizer)
except ValueError as error:
    result = str(error)
"""
    assert result_of(code) == "Attempting to unscale FP16 gradients."


def test_hooks_see_scaled_gradients() -> None:
    code = """
model, seen = torch.nn.Linear(4, 1), []
model.weight.register_hook(lambda gradient: seen.append(float(gradient[0, 0])))
scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD(model.parameters())
scaler.scale(model(torch.ones(1, 4)).sum()).backward()
before = float(torch.nn.utils.clip_grad_norm_([model.bias], 1e9))
scaler.unscale_(optimizer)
result = [*seen, before, float(model.weight.grad[0, 0])]
"""
    assert result_of(code) == [65536.0, 65536.0, 1.0]


def bytes_per_parameter(optimizer: str) -> Any:
    """Bytes of weight, gradient and state after a step."""
    return result_of(f"""
model = torch.nn.Linear(64, 64, bias=False)
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.1)
model(torch.ones(2, 64)).sum().backward()
optimizer.step()
states = [value for value in optimizer.state[model.weight].values() if torch.is_tensor(value) and value.dim()]
result = sum(one.numel() * one.element_size() for one in (model.weight, model.weight.grad, *states)) / 4096
""")


def test_the_table_of_memory() -> None:
    """Each line is bytes × parameters; torch's optimizers have the bytes of their lines."""
    table = RECIPES.split("## Memory of the weights")[1].split("\n## ")[0]
    found = dict(re.findall(r"^\| ([^|]+) \| (\d.*) \|$", table, re.M))
    rows = {
        name: [float(re.sub(r"[ ,GB]", "", cell)) for cell in row.split("|")] for name, row in found.items()
    }

    assert [
        (small, large) for each, small, large in rows.values() if (small, large) != (each * 7, each * 175)
    ] == []
    assert rows["weights in FP32"] == [4, 28, 700]
    assert (
        rows["training with Adam or AdamW"][0] == bytes_per_parameter("Adam") == bytes_per_parameter("AdamW")
    )
    assert rows["training with SGD, no momentum"][0] == bytes_per_parameter("SGD")
    assert rows["training with 8-bit AdamW"][0] == 4 + 4 + 2


@pytest.mark.parametrize("statement", ["7 bits of fraction, FP16 has 10", "DeepSpeed", "serving of models"])
def test_a_reader_of_articles_finds_it(statement: str) -> None:
    assert statement in RECIPES
