"""examples/recipes/amp-mistakes.md: wrong code fails as described, right code passes.

The tests run the code of the page.
"""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
from typing import Any

import pytest

from tests.recipes.torch_python import PYTHON, needs_torch, result_of
from tools.kept import PROOFS, proofs
from torchkiln.util.places import ROOT

pytestmark = needs_torch
PAGE = (ROOT / "examples/recipes/amp-mistakes.md").read_text()
CODE = {
    (kind, name): code
    for kind, name, code in re.findall(
        r"^<!-- (wrong|right): (\S+) -->\n```python\n(.*?)^```$", PAGE, re.M | re.S
    )
}
START = """
import math, warnings
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler
torch.manual_seed(0)

def message_of(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
"""


def scene(kind: str, name: str, before: str = "", after: str = "", times: int = 1) -> Any:
    """Run *before*, the page's code *times* times as the function `lines`, and *after*; returns `result`."""
    code = CODE[kind, name].replace('"cuda"', '"cpu"')
    return result_of(
        f"{START}\n{before}\ndef lines():\n{_global(code)}\nfor _ in range({times}): lines()\n{after}"
    )


def failure(kind: str, name: str, before: str = "", times: int = 1) -> str:
    """The exception of the page's code, as one line; empty if there is none."""
    code = CODE[kind, name].replace('"cuda"', '"cpu"')
    call = f"def all():\n    for _ in range({times}): lines()\nresult = message_of(all)"
    found = result_of(f"{START}\n{before}\ndef lines():\n{_global(code)}\n{call}")
    assert isinstance(found, str)
    return found


def _global(code: str) -> str:
    """*code* as a function body whose variables are global."""
    names = sorted(set(re.findall(r"^\s*(\w+)(?:, \w+)? (?:[-+*/]?=|= )", code, re.M)))
    head = f"    global {', '.join(names)}\n" if names else ""
    return head + textwrap.indent(code, "    ")


STEP = """
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
scaler = torch.amp.GradScaler("cpu")
x = torch.randn(8, 4)
before = lambda: None
"""


def loop(kind: str) -> str:
    """The code of `once`, one training iteration: it computes `loss`, then runs the page's lines."""
    code = CODE[kind, "step"].replace('"cuda"', '"cpu"')
    head = "def once():\n    global scale\n    loss = model(x).square().mean()\n"
    return head + textwrap.indent(code, "    ")


def test_step_returns_nothing() -> None:
    """`scaler.step` returns None: a branch on it never runs; without update, the next step fails."""
    rate = "\nresult = [message_of(once), optimizer.param_groups[0]['lr'], message_of(once)]"
    first, same, second = result_of(START + STEP + loop("wrong") + rate)
    assert (first, same) == ("", 0.1)
    assert second == "RuntimeError: step() has already been called since the last update()."
    assert result_of(START + STEP + loop("right") + rate) == ["", 0.05, ""]


def test_a_step_that_is_left_out_does_not_move_the_scheduler() -> None:
    broken = "\nmodel.weight.register_hook(lambda gradient: gradient * math.inf)\nonce()\n"
    end = "result = [optimizer.param_groups[0]['lr'], scaler.get_scale()]"
    assert result_of(START + STEP + loop("right") + broken + end) == [0.1, 2.0**15]


GROUP = """
import tempfile
dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/meet", rank=0, world_size=1)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = model(torch.randn(8, 4)).square().mean()
"""


def test_all_reduce_takes_one_tensor_and_adds() -> None:
    """test_parallel.py tests with two processes that it adds."""
    wrong = failure("wrong", "all-reduce", GROUP)
    assert re.match(
        r"TypeError: Invalid function argument. Expected parameter `tensor` .* torch.Tensor", wrong
    )
    assert failure("right", "all-reduce", GROUP) == ""


HIGH = "model, x = nn.Linear(8, 8), torch.randn(2, 8)\n"
KINDS = "result = [str(output.dtype), torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32]"


def test_high_is_tf32() -> None:
    """ "high" only sets the switch for matrix products; TF32 has the range of FP32, FP16 has not."""
    assert scene("wrong", "high", HIGH, KINDS) == ["torch.float32", True, True]
    assert scene("right", "high", HIGH, KINDS) == ["torch.bfloat16", False, True]
    large = "x, model = torch.full((1, 1), 1e5), nn.Identity()\n"
    assert scene("wrong", "high", large, "result = [float(output), float(output.half())]") == [
        1e5,
        float("inf"),
    ]


BLOCK = "block, images = nn.Linear(4, 4), torch.randn(2, 4)\n"
GRADIENT = "result = block.weight.grad is not None"


def test_checkpoint_without_use_reentrant() -> None:
    """The wrong code gives an error. With a layer after the block, it warns, and the block never learns."""
    assert failure("wrong", "checkpoint", BLOCK).startswith(
        "RuntimeError: element 0 of tensors does not require grad"
    )
    later = BLOCK + "inner = block\nhead = nn.Linear(4, 4)\n"
    silent = "block = inner\nhead(checkpoint(block, images, use_reentrant=True)).sum().backward()\n"
    assert result_of(f"{START}{later}warnings.simplefilter('ignore')\n{silent}{GRADIENT}") is False
    assert scene("right", "checkpoint", BLOCK, GRADIENT) is True


OFFLOAD = """
block, head, x = nn.Sequential(nn.Linear(4, 64), nn.Tanh()), nn.Linear(64, 4), torch.randn(8, 4)
class Counted(torch.autograd.graph.saved_tensors_hooks):
    packed = 0
    def __init__(self, *_, **__):
        def pack(tensor):
            Counted.packed += 1
            return tensor
        super().__init__(pack, lambda tensor: tensor)
torch.autograd.graph.save_on_cpu = Counted
"""


def test_offload_that_saves_nothing() -> None:
    """Hooks around the backward pass move no tensor. With a manual copy, the graph keeps the original."""
    assert scene("wrong", "offload", OFFLOAD, "result = Counted.packed") == 0
    assert scene("right", "offload", OFFLOAD, "result = Counted.packed") > 4
    kept = "hidden = block(x)\ncopy = hidden.clone()\nsaved = hidden.grad_fn._saved_result.data_ptr()\n"
    same = "result = [saved == hidden.data_ptr(), saved == copy.data_ptr()]"
    assert result_of(START + OFFLOAD + kept + same) == [True, False]


def test_in_place_that_breaks_autograd() -> None:
    """Only some in-place operations break autograd: ReLU after a linear layer may be in place."""
    block = "block, x = nn.Linear(4, 4), torch.randn(2, 4)\n"
    assert "has been modified by an inplace operation" in failure("wrong", "in-place", block)
    assert failure("right", "in-place", block) == ""
    relu = "functional.relu_(block(x)).sum().backward()\nresult = block.weight.grad is not None"
    assert result_of(START + block + relu) is True


PARTS = """
model, base_rate, accumulate = nn.Linear(4, 1).double(), 0.1, 4
x = torch.randn(16, 4).double()
y = torch.randn(16, 1).double()
whole, = torch.autograd.grad(functional.mse_loss(model(x), y), [model.weight])
"""


def test_the_rate_of_parts_of_a_batch() -> None:
    """The wrong lines' step is N·√N times as long as the whole batch's; the right lines' step is as long."""
    step = "result = float((rate * model.weight.grad).norm() / (base_rate * whole).norm())"
    assert scene("wrong", "rate", PARTS, step) == pytest.approx(8.0)
    assert scene("right", "rate", PARTS, step) == pytest.approx(1.0)
    for name in ("Adam", "AdamW"):
        code = f"""
start = model.weight.detach().clone()
def moved(rate, gradient):
    weight = nn.Parameter(start.clone())
    weight.grad = gradient
    torch.optim.{name}([weight], lr=rate, weight_decay=0).step()
    return float((weight.detach() - start).norm())
result = moved(rate, model.weight.grad) / moved(base_rate, whole)
"""
        assert scene("wrong", "rate", PARTS, code) == pytest.approx(2.0, rel=1e-3)


def test_the_rate_of_a_larger_batch() -> None:
    """An SGD step with N times the batch and N times the rate is close to N small steps; √N is too little."""
    code = (
        PARTS
        + """
base_rate = 0.002
start = {name: value.clone() for name, value in model.state_dict().items()}
def after(batches, rate):
    model.load_state_dict(start)
    for inputs, targets in batches:
        model.zero_grad()
        functional.mse_loss(model(inputs), targets).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= rate * parameter.grad
    return model.weight.detach().clone()
small = after(zip(x.chunk(4), y.chunk(4)), base_rate)
far = lambda rate: float((after([(x, y)], rate) - small).norm() / (small - start["weight"]).norm())
result = [far(4 * base_rate), far(2 * base_rate)]
"""
    )
    linear, root = result_of(START + code)
    assert linear < 0.05
    assert root == pytest.approx(0.5, abs=0.05)


SCALED = """
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(8, 4)
"""
LEFT_OUT = """
start, count = model.weight.detach().clone(), 0
while torch.equal(start, model.weight):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(x).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    count += 1
result = count - 1
"""


def test_a_higher_init_scale_leaves_steps_out() -> None:
    wrong = scene("wrong", "init-scale", SCALED, LEFT_OUT)
    right = scene("right", "init-scale", SCALED, LEFT_OUT)
    assert right <= 3
    assert wrong >= right + 20


SAMPLER = (
    "data, world, epoch = list(range(32)), 2, 0\nseen = []\nfor rank in range(2):\n    torch.manual_seed(7)\n"
)
SEEN = "    lines()\n    seen.append([int(n) for batch in loader for n in batch])\nresult = seen"


def _loaded(kind: str) -> list[list[int]]:
    """The samples that each process reads in an epoch, in order."""
    found = result_of(f"{START}\ndef lines():\n{_global(CODE[kind, 'sampler'])}\n{SAMPLER}{SEEN}")
    assert isinstance(found, list)
    return found


def test_ddp_without_a_sampler() -> None:
    first, second = _loaded("wrong")
    assert first == second
    assert sorted(first) == list(range(32))
    first, second = _loaded("right")
    assert set(first).isdisjoint(second)
    assert sorted(first + second) == list(range(32))


def test_a_lower_init_scale_grows_slowly() -> None:
    scaler = "torch.amp.GradScaler('cpu', init_scale=512)"
    code = f"a, b = torch.amp.GradScaler('cpu'), {scaler}\nresult = [a._init_scale, b.get_growth_interval()]"
    scale, interval = result_of(START + code)
    assert (scale, interval) == (65536, 2000)
    assert "from 512 it needs 14,000 steps to reach the default, 65,536" in PAGE
    assert 512 * 2 ** (14000 / interval) == scale


def test_fp32_is_two_baselines() -> None:
    """By default, one switch is off and one is on; the page's figures are those of a committed report."""
    flags = "[torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32]"
    speed = f"model, time_of = None, lambda model: {flags}\n"
    assert scene("wrong", "speed", speed, "result = before") == [False, True]
    assert scene("right", "speed", speed, "result = before") == [False, False]
    measured = [
        json.loads(finding.measured)
        for signed in proofs(PROOFS)
        for finding in signed.report.findings
        if finding.id == "benchmark"
    ]
    ratios = {(f"{one['speed_128']:.2f}", f"{one['speed_over_tf32_128']:.2f}") for one in measured}
    assert ("6.04", "1.83") in ratios
    assert "6.04 times as fast as in FP32 and 1.83 times as fast as in TF32" in PAGE


def test_a_comment_after_a_line_continuation() -> None:
    with pytest.raises(SyntaxError, match="unexpected character after line continuation"):
        compile(CODE["wrong", "continuation"], "page", "exec")
    compile(CODE["right", "continuation"], "page", "exec")
    [line] = re.findall(r"`(--fp16 \\ # .*?)`", PAGE)
    done = subprocess.run(
        ["bash", "-c", f"printf '[%s]' {line}\n--next"], capture_output=True, text=True, check=False
    )
    assert done.stdout == "[--fp16][ #][mixed][precision]"
    assert "--next: command not found" in done.stderr


def test_each_section_has_both_versions() -> None:
    assert PYTHON
    assert {name for kind, name in CODE if kind == "wrong"} == {
        name for kind, name in CODE if kind == "right"
    }
    assert len(CODE) == 22
