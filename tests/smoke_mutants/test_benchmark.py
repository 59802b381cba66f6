"""Mutants of benchmark, and what of it needs no GPU: encoder, a step of training, search, curves."""

from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from smoke_tests.curves import WINDOW, fall, figures, smoothed, widest_gap
from smoke_tests.search import largest
from tests.smoke_mutants.mutant import (
    PYTHON,
    alone,
    broken,
    check,
    needs_gpus,
    needs_torch,
    pytest_folder,
    without_gpu,
)
from tests.smoke_mutants.pretended import PRETEND
from tests.smoke_suites import SUITE

LIMIT = 500  # seconds, as the check has them
LENGTHS = (128, 512)
NO_AUTOCAST = """
import torch

class Off(torch.autocast):
    def __init__(self, *args, **options):
        super().__init__(*args, **(options | {"enabled": False}))

torch.autocast = Off
"""
ALWAYS_TF32 = """
import torch
torch.set_float32_matmul_precision("high")
torch.set_float32_matmul_precision = lambda precision: None
"""
NO_STEP = "import torch\ntorch.optim.AdamW.step = lambda self, closure=None: None"
TINY = "Shape(layers=2, width=32, heads=2, inner=64, vocabulary=500, positions=16)"


@alone
@needs_gpus(1)
def test_benchmark_passes_in_a_sound_environment(tmp_path: Path) -> None:
    told = check("benchmark", tmp_path, limit=LIMIT)
    assert (told["outcome"], told["message"]) == ("passed", "")


@alone
@needs_gpus(1)
def test_without_autocast_nothing_is_gained(tmp_path: Path) -> None:
    """Each gate breaks: the type that came out, the speed, the memory, the largest batch, at both lengths."""
    told = check("benchmark", tmp_path, NO_AUTOCAST, limit=LIMIT)
    assert told["outcome"] == "failed"
    assert broken(told) == [
        f"{name}_{length}" for length in LENGTHS for name in ("logits", "speed", "memory", "batch")
    ]


@alone
@needs_gpus(1)
def test_tf32_left_on_is_not_taken_for_fp32(tmp_path: Path) -> None:
    """The rest may well pass, against a base that is itself fast: only the product's error tells."""
    told = check("benchmark", tmp_path, ALWAYS_TF32, limit=LIMIT)
    assert told["outcome"] == "failed"
    assert broken(told)[0] == "fp32_product_error"
    assert set(broken(told)[1:]) <= {f"speed_{length}" for length in LENGTHS}


@alone
@needs_gpus(1)
def test_an_optimizer_that_does_nothing_learns_nothing(tmp_path: Path) -> None:
    told = check("benchmark", tmp_path, NO_STEP, limit=LIMIT)
    assert told["outcome"] == "failed"
    assert broken(told) == ["loss_fall_fp32", "loss_fall_fp16"]


@needs_torch
def test_benchmark_fails_where_there_is_no_gpu(tmp_path: Path) -> None:
    told = check("benchmark", tmp_path, CUDA_VISIBLE_DEVICES="")
    assert told["outcome"] == "failed"
    assert "CUDA" in told["message"]
    assert "loss_fp32" not in told["measured"]


def torch_says(code: str, mutant: str = "") -> Any:
    """The JSON that *code* prints under the Python that has torch, the suite loaded, *mutant* run before."""
    head = f"import json, pathlib, runpy, sys\nsys.path.append({pytest_folder()!r})\n"
    head += f"runpy.run_path('{SUITE}/one.py')['load_suite'](pathlib.Path('{SUITE}'))"
    command = [PYTHON, "-I", "-B", "-c", "\n".join((mutant, head, code))]
    env = os.environ | {"OMP_NUM_THREADS": "1"}  # threads that wait for each other are slow where others work
    return json.loads(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)


@needs_torch
def test_the_encoder_has_the_parameters_of_bert_base() -> None:
    """Counted here from its shape, as published, and there from its weights."""
    vocabulary, positions, width, inner = 30522, 512, 768, 3072
    norm = 2 * width
    layer = 4 * (width * width + width) + 2 * width * inner + inner + width + 2 * norm
    wanted = (vocabulary + positions + 2) * width + norm + 12 * layer
    code = """
from smoke_tests.encoder import PARAMETERS, BERT_BASE, Encoder
import torch
with torch.device("meta"):
    made = Encoder(BERT_BASE)
print(json.dumps([PARAMETERS, sum(weight.numel() for weight in made.parameters())]))
"""
    assert torch_says(code) == [wanted, wanted]


@needs_torch
def test_a_layer_is_torchs_own_encoder_layer() -> None:
    """With the same weights the same numbers: attention, residuals and norms are where they belong."""
    code = f"""
import torch
from smoke_tests.encoder import Layer, Shape
torch.manual_seed(0)
shape = {TINY}
ours = Layer(shape)
theirs = torch.nn.TransformerEncoderLayer(
    shape.width, shape.heads, shape.inner, dropout=0.0, activation="gelu", batch_first=True)
names = {{"attended.weight": "self_attn.in_proj_weight", "attended.bias": "self_attn.in_proj_bias",
    "joined.weight": "self_attn.out_proj.weight", "joined.bias": "self_attn.out_proj.bias",
    "up.weight": "linear1.weight", "up.bias": "linear1.bias",
    "down.weight": "linear2.weight", "down.bias": "linear2.bias",
    "first_norm.weight": "norm1.weight", "first_norm.bias": "norm1.bias",
    "second_norm.weight": "norm2.weight", "second_norm.bias": "norm2.bias"}}
theirs.load_state_dict({{names[name]: value for name, value in ours.state_dict().items()}})
hidden = torch.randn(3, 7, shape.width)
print(json.dumps(float((ours(hidden) - theirs(hidden)).abs().max())))
"""
    assert torch_says(code) < 1e-5


# A GPU for the eyes of the check alone (on top of pretend_gpu.py): as fast as its products are small, with as
# much memory as the check lets it have, and TF32 where that is allowed. And a small encoder, so that it ends.
SMALL_GPU = """
clock, room, plain, keep = [0.0], [1 << 60], account.product, account.add

class Event:
    def __init__(self, enable_timing):
        self.at = 0.0
    def record(self):
        self.at = clock[0]
    def elapsed_time(self, later):
        return later.at - self.at

def product(func, args):
    if torch.get_float32_matmul_precision() == "high" and args[0].dtype == torch.float32:
        args = [(item.view(torch.int32) & ~0x1FFF).view(torch.float32) for item in args]
    found = plain(func, args)
    clock[0] += found.nbytes / 1e6
    return found

def add(storage, of_host):
    keep(storage, of_host)
    if account.held > room[0]:
        raise torch.cuda.OutOfMemoryError("pretended")

account.product, account.add, torch.cuda.Event = product, add, Event
torch.cuda.get_device_name = lambda: "pretended"
torch.cuda.mem_get_info = lambda: (1 << 30, 1 << 30)
torch.cuda.set_per_process_memory_fraction = lambda part: room.__setitem__(0, part * (1 << 30))
"""
SMALL_CHECK = """
from functools import partial
from smoke_tests import encoder, finetune, measure, test_benchmark
small = encoder.Shape(layers=1, width=32, heads=2, inner=128, vocabulary=500, positions=512)
encoder.PARAMETERS = sum(weight.numel() for weight in encoder.Encoder(small).parameters())
encoder.Classifier = partial(encoder.Classifier, small)
encoder.sentences = partial(encoder.sentences, vocabulary=small.vocabulary)
finetune.LEARNING_RATE = 1e-2
test_benchmark.BATCH, test_benchmark.TIMED = 4, {128: (1, 1), 512: (1, 1)}
test_benchmark.BUDGET, test_benchmark.CURVE, test_benchmark.CURVE_BATCH = 6 << 20, 50, 8
told = measure.Measure()
test_benchmark.test_benchmark(told)
print(json.dumps([told.measured, told.faults()]))
"""


@pytest.mark.parametrize(
    ("mutant", "names"),
    [
        ("", []),
        (NO_AUTOCAST, [f"{name}_{length}" for length in LENGTHS for name in ("speed", "memory", "batch")]),
        (ALWAYS_TF32, ["fp32_product_error"]),
        (NO_STEP, ["loss_fall_fp32", "loss_fall_fp16"]),
    ],
    ids=["sound", "no autocast", "TF32 left on", "no step"],
)
@needs_torch
@without_gpu
def test_each_gate_breaks_on_a_small_gpu_that_is_none(mutant: str, names: list[str]) -> None:
    """All but what finds out that no GPU is there: the logits."""
    measured, faults = torch_says(SMALL_CHECK, PRETEND + SMALL_GPU + mutant)
    where = {f"logits_{length}" for length in LENGTHS}
    found = [fault.split(":")[0] for fault in faults]

    assert where <= set(found)
    assert [name for name in found if name not in where] == names
    assert len(measured["loss_fp16"]) == 50


STEPS = f"""
from smoke_tests import finetune
from smoke_tests.encoder import Classifier, Shape, sentences
finetune.LEARNING_RATE = 1e-2
model = Classifier({TINY})
words, classes = sentences(60 * 16, 16, seed=0, vocabulary=500)
told = {{}}
for precision in ("fp32", "tf32", "bf16"):
    one = finetune.Training(model, precision, device="cpu")
    told[precision] = [one.logits, finetune.losses(one, words, classes, steps=60), one.logits]
print(json.dumps(told))
"""


@needs_torch
def test_a_small_encoder_learns_alike_at_each_precision() -> None:
    """Each begins from the same weights, and autocast says which type it multiplies in."""
    told = torch_says(STEPS)
    assert {name: one[2] for name, one in told.items()} == {
        "fp32": "torch.float32 on cpu",
        "tf32": "torch.float32 on cpu",
        "bf16": "torch.bfloat16 on cpu",
    }
    curves = {name: one[1] for name, one in told.items()}
    assert all(len(curve) == 60 and fall(curve) < 0.5 for curve in curves.values())
    assert curves["fp32"][0] == pytest.approx(curves["bf16"][0], rel=0.02)
    assert widest_gap(curves["fp32"], curves["bf16"]) < 0.3


@needs_torch
def test_a_small_encoder_without_steps_does_not_learn() -> None:
    assert all(fall(one[1]) > 0.8 for one in torch_says(STEPS, NO_STEP).values())


@needs_torch
def test_the_rate_rises_and_falls() -> None:
    code = "from smoke_tests import finetune\n"
    most, rates = torch_says(code + "print(json.dumps([finetune.LEARNING_RATE, finetune.rates(200)]))")
    top = rates.index(max(rates))

    assert (len(rates), rates[top], top) == (200, most, 19)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[0] == pytest.approx(most / 20)
    assert 0 < rates[-1] < most / 100


@needs_torch
def test_sentences_are_the_seeds_and_tell_their_class() -> None:
    """A quarter of each sentence's words are its class's own, and only they are of any class."""
    code = """
import torch
from smoke_tests.encoder import CLASSES, sentences
words, classes = sentences(64, 512, seed=5)
again, _ = sentences(64, 512, seed=5)
other, _ = sentences(64, 512, seed=6)
known = words[words < CLASSES * 16]
own = (words // 16 == classes[:, None]).sum(1)
print(json.dumps([bool((words == again).all()), bool((words == other).all()), len(known) == int(own.sum()),
    int(own.min()), int(own.max()), sorted(set(classes.tolist())), int(words.max()) < 30522]))
"""
    same, equal, whole, least, most, classes, inside = torch_says(code)
    assert (same, equal, whole, inside) == (True, False, True, True)
    assert 80 < least < 128 < most < 180
    assert classes == list(range(8))


@needs_torch
def test_every_switch_of_tf32_says_the_same() -> None:
    """torch 2.9 and newer have two sets of them and raise, when asked, where they disagree."""
    code = """
import torch
from smoke_tests.torch_api import tensor_float
def switches():
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    found = [torch.get_float32_matmul_precision() != "highest", cuda.allow_tf32, cudnn.allow_tf32]
    if hasattr(cuda, "fp32_precision"):
        found += [one.fp32_precision == "tf32" for one in (cuda, cudnn.conv, cudnn.rnn)]
    return found
told = []
for allowed in (True, False, True, False):
    tensor_float(allowed)
    told.append(switches())
print(json.dumps(told))
"""
    told = torch_says(code)
    assert [set(one) for one in told] == [{True}, {False}, {True}, {False}]


@pytest.mark.parametrize(
    ("most", "first", "grain"), [(45, 8, 1), (8, 8, 1), (7, 8, 1), (0, 8, 1), (190, 32, 4), (64, 32, 4)]
)
def test_the_largest_batch_is_found_with_few_trials(most: int, first: int, grain: int) -> None:
    asked: list[int] = []

    def fits(batch: int) -> bool:
        asked.append(batch)
        return batch <= most

    assert most - grain < largest(fits, first, grain) <= most
    assert len(asked) <= 12
    assert len(set(asked)) == len(asked)


def test_a_curves_course_is_judged_and_not_its_noise() -> None:
    noise = [0.5 * (-1) ** step for step in range(200)]
    flat = [2.0 + one for one in noise]
    steep = [2.0 * 0.9**step for step in range(200)]

    assert fall(flat) == pytest.approx(0.8)  # of a first value that is 2.5
    assert fall(steep) < 1e-3
    assert widest_gap(flat, [2.0] * 200) == pytest.approx(0)
    assert widest_gap(flat, steep) > 1.9
    assert len(smoothed(flat)) == 200 - WINDOW + 1


def test_a_curve_that_breaks_has_no_gap_that_could_pass() -> None:
    whole = [2.0] * 200
    assert math.isnan(widest_gap(whole, [*whole[:150], math.nan, *whole[151:]]))
    assert math.isnan(fall([*whole[:-1], math.nan]))


def test_figures_are_five() -> None:
    assert [figures(value) for value in (1234567.0, 0.000123456789, 2.0)] == [1234600.0, 0.00012346, 2.0]
