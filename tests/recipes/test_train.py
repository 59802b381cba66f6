"""recipes/train.py on a CPU: each option runs and has its effect."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.needs import nightly
from tests.recipes.scenes import scene, train
from tests.recipes.torch_python import ENVIRON, PYTHON, needs_torch
from torchkiln.util.places import ROOT

pytestmark = needs_torch
SWITCHES = [
    [],
    ["--precision", "tf32"],
    ["--precision", "fp16"],
    ["--precision", "bf16"],
    ["--precision", "fp8"],
    ["--accumulate", "4"],
    ["--checkpointing"],
    ["--offload"],
    ["--optimizer", "adafactor"],
    ["--optimizer", "sgd"],
    ["--clip", "0.5"],
    ["--workers", "1", "--prefetch", "1"],
    [
        "--precision",
        "bf16",
        "--accumulate",
        "2",
        "--checkpointing",
        "--offload",
        "--optimizer",
        "sgd",
        "--clip",
        "1",
    ],
    ["--model", "resnet"],
    ["--model", "resnet", "--precision", "bf16", "--in-place", "--channels-last", "--checkpointing"],
    ["--model", "resnet", "--precision", "fp16", "--accumulate", "2"],
]


# NIGHTLY=yes runs each option alone; `make proof` runs only the combinations.
@pytest.mark.parametrize(
    "words",
    [pytest.param(words, marks=[nightly] if len(words) in (1, 2) else []) for words in SWITCHES],
    ids=" ".join,
)
def test_a_switch_runs_two_steps(words: Sequence[str]) -> None:
    values = train("--steps", "2", *words)
    assert len(values["losses"]) == 2
    assert all(map(math.isfinite, values["losses"]))


def test_the_exporter_reads_what_a_run_prints(tmp_path: Path) -> None:
    """deploy/monitoring/exporter.py converts the output of recipes.train into Prometheus's format."""
    log = tmp_path / "log"
    argv = [PYTHON, "-m", "recipes.train", "--device", "cpu", "--steps", "4", "--watch-every", "2"]
    with log.open("wb") as out:
        subprocess.run(argv, env={**os.environ, **ENVIRON}, stdout=out, check=True)
    exporter = [sys.executable, str(ROOT / "deploy/monitoring/exporter.py"), "--once", "--log", str(log)]
    page = subprocess.run(exporter, capture_output=True, text=True, check=True).stdout

    values = dict(re.findall(r"^torchkiln_training_(\w+)\{.*\} (\S+)$", page, re.MULTILINE))
    assert (values["step"], values["loss_scale"]) == ("4.0", "1.0")
    assert 0 < float(values["loss"]) < 100
    assert float(values["samples_per_second"]) > 0


@nightly
def test_torch_compile_runs_and_the_weights_keep_their_names() -> None:
    names = "list(train.Training(parse(['--compile']), cpu, alone).model.state_dict())"
    assert "_orig_mod" not in " ".join(scene(f"result = {names}"))
    assert len(train("--steps", "2", "--compile")["losses"]) == 2


@pytest.mark.parametrize("model", ["transformer", "resnet"])
def test_it_learns(model: str) -> None:
    losses = train("--model", model, "--steps", "30")["losses"]
    assert losses[-1] < 0.9 * losses[0]


ACCUMULATED = """
plain, parts = (train.Training(Settings(model=kind, accumulate=count), cpu, alone) for count in (1, 4))
batch = batch_of(plain.settings)
losses = [float(each.backward(*batch)) for each in (plain, parts)]
result = [distance(gradient(parts), gradient(plain)), abs(losses[0] - losses[1])]
"""


def test_accumulation_gives_the_gradient_of_the_batch() -> None:
    error, apart = scene("kind = 'transformer'" + ACCUMULATED)
    assert error < 1e-5
    assert apart < 1e-5


def test_accumulation_changes_what_batchnorm_sees() -> None:
    """BatchNorm normalizes each part by that part's mean and variance, so the gradient differs."""
    assert scene("kind = 'resnet'" + ACCUMULATED)[0] > 1e-2


def test_accumulation_without_the_division_is_found() -> None:
    mutant = """
real = functional.cross_entropy
class Undivided(torch.Tensor):
    def __truediv__(self, other):
        return self.as_subclass(torch.Tensor)
functional.cross_entropy = lambda *given: real(*given).as_subclass(Undivided)
kind = 'transformer'
"""
    assert scene(mutant + ACCUMULATED)[0] == pytest.approx(3.0, rel=1e-3)


CLIPPED = """
norm = 0.01
settings = Settings(precision="fp16", optimizer="sgd", clip=norm, rate=1.0, init_scale=1024.0)
training = train.Training(settings, cpu, alone)
before = torch.cat([parameter.detach().flatten() for parameter in training.model.parameters()])
training.backward(*batch_of(training.settings))
training.update(99)
after = torch.cat([parameter.detach().flatten() for parameter in training.model.parameters()])
result = float((after - before).norm()) / norm
"""


def test_clipping_is_after_unscaling() -> None:
    """With rate 1, the length of an SGD step is the norm of the clipped gradient."""
    assert scene(CLIPPED) == pytest.approx(1.0, rel=1e-2)


def test_clipping_before_unscaling_is_found() -> None:
    """A mutant: the clipped gradient is afterwards divided by the scale of 1024."""
    mutant = """
clip, update = parallel.clip, train.Training.update
parallel.clip = lambda *given: None
def early(self, step):
    clip(self.settings, self.model)
    update(self, step)
train.Training.update = early
"""
    assert scene(mutant + CLIPPED) < 0.01


def test_precisions_set_both_switches_of_tf32() -> None:
    code = """
result = []
for name in ("fp32", "tf32", "fp32"):
    precision.prepare(Settings(precision=name), cpu)
    result.append([torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32])
"""
    assert scene(code) == [[False, False], [True, True], [False, False]]


def test_under_autocast_weights_gradients_and_batchnorm_stay_fp32() -> None:
    code = """
training = train.Training(Settings(model="resnet", precision="bf16"), cpu, alone)
inputs = []
norm = training.model.blocks[0].norm1
norm.register_forward_hook(lambda module, given, found: inputs.append(str(given[0].dtype)))
training.backward(*batch_of(training.settings))
kinds = {str(value.dtype) for value in training.model.state_dict().values()}
kinds |= {str(parameter.grad.dtype) for parameter in training.model.parameters()}
result = [inputs, sorted(kinds)]
"""
    assert scene(code) == [["torch.bfloat16"], ["torch.float32", "torch.int64"]]


def test_fp8_products_are_near_those_of_fp32() -> None:
    """FP8 has a fraction of 3 bits (2 for gradients), so results may differ by 4 %."""
    code = """
torch.manual_seed(0)
plain = nn.Linear(64, 32)
small = nn.Linear(64, 32)
small.load_state_dict(plain.state_dict())
fp8.convert(nn.ModuleList([small]))
x = torch.randn(16, 64)
result = [type(small).__name__]
found = []
for layer in (small, plain):
    mine = x.clone().requires_grad_()
    output = layer(mine)
    (output.float() * torch.linspace(-1, 1, 32)).sum().backward()
    found.append([output.float(), mine.grad, layer.weight.grad])
result += [distance(a, b) for a, b in zip(*found)]
"""
    name, output, of_x, of_weight = scene(code)
    assert name == "Float8Linear"
    assert 0.005 < output < 0.06
    assert 0.005 < of_x < 0.12
    assert 0.005 < of_weight < 0.12


KEPT = """
memory.SMALLEST = 0
seen = {"moved": 0, "weights": 0}
real = torch.autograd.graph.saved_tensors_hooks
def hooks(pack, unpack):
    def packed(tensor):
        found = pack(tensor)
        seen["weights" if isinstance(found, torch.Tensor) else "moved"] += 1
        assert isinstance(found, torch.Tensor) == isinstance(tensor, nn.Parameter)
        return found
    return real(packed, unpack)
torch.autograd.graph.saved_tensors_hooks = hooks
def grown(**switches):
    training = train.Training(Settings(**switches), cpu, alone)
    training.backward(*batch_of(training.settings))
    return gradient(training)
"""


def test_offload_moves_activations_and_no_weights() -> None:
    """The gradient is bitwise equal."""
    equal, seen = scene(KEPT + "result = [torch.equal(grown(offload=True), grown()), seen]")
    assert equal is True
    assert seen["moved"] > 20
    assert seen["weights"] >= 10


def test_checkpointing_keeps_the_input_of_each_block_only() -> None:
    """The hooks of offload count the saved tensors."""
    code = (
        KEPT
        + """
many = (grown(offload=True), dict(seen))[1]["moved"]
seen["moved"] = 0
result = [torch.equal(grown(offload=True, checkpointing=True), grown()), many, seen["moved"]]
"""
    )
    equal, plain, checkpointed = scene(code)
    assert equal is True
    assert checkpointed < plain / 2


def test_in_place_gives_the_same_gradient() -> None:
    code = """
def grown(**switches):
    training = train.Training(Settings(model="resnet", **switches), cpu, alone)
    training.backward(*batch_of(training.settings))
    return gradient(training)
result = torch.equal(grown(in_place=True), grown())
"""
    assert scene(code) is True


def test_a_loss_that_is_not_a_number_ends_the_run() -> None:
    code = """
settings = parse(["--device", "cpu", "--rate", "1e30", "--steps", "9", "--watch-every", "3"])
try:
    train.run(settings)
except FloatingPointError as error:
    result = str(error)
"""
    assert scene(code) == "the loss is nan at step 3: lower the rate, or use bf16"


def test_a_profile_is_a_trace_that_can_be_read(tmp_path: Path) -> None:
    train("--steps", "5", "--profile", str(tmp_path / "made"))
    trace = json.loads((tmp_path / "made" / "trace.json").read_text())
    assert "aten::linear" in {event.get("name") for event in trace["traceEvents"]}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--accumulate", "3"], "--accumulate 3: must divide the batch of 8"),
        (["--in-place"], "--in-place and --channels-last: only for --model resnet"),
        (["--model", "resnet", "--precision", "fp8"], "--precision fp8: only for --model transformer"),
        (["--compile", "--offload"], "--compile with --offload: "),
        (["--fused"], "--fused: only adamw and sgd on a GPU"),
        (["--optimizer", "adamw8bit"], "--optimizer adamw8bit: bitsandbytes is not installed"),
        (["--parallel", "ddp"], "--parallel: start with torchrun"),
        (["--parallel", "fsdp1"], "--parallel fsdp1: needs a GPU"),
        (["--sync-batchnorm"], "--sync-batchnorm: only for --model resnet with --parallel ddp"),
        (["--sync-batchnorm", "--model", "resnet", "--parallel", "ddp"], "--sync-batchnorm: needs GPUs"),
        (["--model", "resnet", "--parallel", "fsdp2"], "--parallel fsdp: only for --model transformer"),
        (["--parallel", "fsdp2", "--precision", "fp16"], "--parallel fsdp2 --precision fp16: use bf16"),
        (["--batch", "5000"], "--batch 5000: larger than the 4096 samples of a process"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_run_says_so(words: Sequence[str], message: str) -> None:
    code = f"""
import contextlib, io, os, sys
os.environ.pop("RANK", None)
sys.modules["bitsandbytes"] = None
sys.argv = ["train", "--device", "cpu", "--steps", "1", *{words!r}]
with contextlib.redirect_stderr(io.StringIO()) as printed:
    code = train.main()
result = [code, printed.getvalue()]
"""
    code_, printed = scene(code)
    assert code_ == 3
    assert printed.startswith(f"unavailable: {message}")
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "call", "message"),
    [
        ("api.RELEASE = (2, 3)", "api.fully_shard()", "--parallel fsdp2: needs torch 2.4"),
        (
            "api.RELEASE = (2, 2)",
            "api.sharded_state('fsdp1')",
            "--save and --resume with --parallel fsdp1: needs",
        ),
        (
            "api.RELEASE = (2, 4)",
            "api.sharded_state('fsdp2')",
            "--save and --resume with --parallel fsdp2: needs",
        ),
        ("del torch.optim.Adafactor", "api.adafactor()", "--optimizer adafactor: needs torch 2.5"),
        ("del torch.float8_e4m3fn", "api.demand_fp8(cpu)", "--precision fp8: needs torch 2.1"),
        (
            "def old(model):\n    raise RuntimeError('Python 3.99 is not supported')\ntorch.compile = old",
            "api.compiled(None)",
            "--compile: torch ",
        ),
    ],
    ids=lambda value: value[:24],
)
def test_an_older_torch_says_what_it_lacks(change: str, call: str, message: str) -> None:
    code = f"""
from recipes import torch_api as api
{change}
try:
    {call}
except Unavailable as error:
    result = str(error)
"""
    assert scene(code).startswith(message)


def test_a_torch_without_a_scaler_for_the_cpu_uses_the_one_for_cuda() -> None:
    """torch before 2.3 has only a scaler for CUDA, which is disabled on a CPU."""
    code = """
import warnings
warnings.simplefilter("ignore")
from recipes import torch_api
del torch.amp.GradScaler
found = torch_api.grad_scaler("cpu", init_scale=8.0, enabled=True)
result = [type(found).__module__, found.is_enabled()]
"""
    assert scene(code) == ["torch.cuda.amp.grad_scaler", False]
