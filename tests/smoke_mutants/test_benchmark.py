"""Mutants of the check `benchmark`, and tests of parts that need no GPU: encoder, step, search, curves."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from smoke_tests.curves import WINDOW, fall, figures, smoothed, spread, widest_gap
from smoke_tests.search import largest
from tests.smoke_mutants.mutant import (
    alone,
    broken,
    check,
    needs_gpus,
    needs_torch,
    torch_prints,
    without_gpu,
)
from tests.smoke_mutants.pretended import PRETEND

LIMIT = 500  # seconds, as in the check
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
# In half precision, the host limits the speed of a step, not the GPU, but the step is still faster than in
# FP32.
SLOW_HOST = """
import time, torch

class Slow(torch.autocast):
    def __exit__(self, *raised):
        time.sleep(0.043)
        return super().__exit__(*raised)

torch.autocast = Slow
"""
TINY = "Shape(layers=2, width=32, heads=2, inner=64, vocabulary=500, positions=16)"


@alone
@needs_gpus(1)
def test_benchmark_passes_in_a_sound_environment(tmp_path: Path) -> None:
    result = check("benchmark", tmp_path, limit=LIMIT)
    assert (result["outcome"], result["message"]) == ("passed", "")


@alone
@needs_gpus(1)
def test_without_autocast_every_bound_fails(tmp_path: Path) -> None:
    """Output type, speed, memory and largest batch are out of bounds, for both sequence lengths."""
    result = check("benchmark", tmp_path, NO_AUTOCAST, limit=LIMIT)
    assert result["outcome"] == "failed"
    assert broken(result) == [
        f"{name}_{length}" for length in LENGTHS for name in ("logits", "speed", "memory", "batch")
    ]


@alone
@needs_gpus(1)
def test_tf32_is_not_accepted_as_fp32(tmp_path: Path) -> None:
    """Other values may pass, because TF32 makes FP32 fast. The error of the product shows TF32."""
    result = check("benchmark", tmp_path, ALWAYS_TF32, limit=LIMIT)
    assert result["outcome"] == "failed"
    assert broken(result)[0] == "fp32_product_error"
    assert set(broken(result)[1:]) <= {f"speed_{length}" for length in LENGTHS}


@alone
@needs_gpus(1)
def test_an_optimizer_without_effect_fails(tmp_path: Path) -> None:
    result = check("benchmark", tmp_path, NO_STEP, limit=LIMIT)
    assert result["outcome"] == "failed"
    assert broken(result) == ["loss_fall_fp32", "loss_fall_fp16"]


@alone
@needs_gpus(1)
def test_a_host_that_is_too_slow_for_the_gpu_fails(tmp_path: Path) -> None:
    """The test uses BF16: with FP16, the GradScaler waits for the GPU in each step."""
    result = check("benchmark", tmp_path, SLOW_HOST, limit=LIMIT)
    names = {f"largest_launch_share_{length}" for length in LENGTHS}
    assert "largest_launch_share_512" in broken(result)
    assert set(broken(result)) <= names


@needs_torch
def test_benchmark_fails_without_a_gpu(tmp_path: Path) -> None:
    result = check("benchmark", tmp_path, CUDA_VISIBLE_DEVICES="")
    assert result["outcome"] == "failed"
    assert "CUDA" in result["message"]
    assert "loss_fp32" not in result["measured"]


@needs_torch
def test_the_encoder_has_the_parameters_of_bert_base() -> None:
    """The published shape of BERT-base and the encoder's weights have the same number of parameters."""
    vocabulary, positions, width, inner = 30522, 512, 768, 3072
    norm = 2 * width
    layer = 4 * (width * width + width) + 2 * width * inner + inner + width + 2 * norm
    expected = (vocabulary + positions + 2) * width + norm + 12 * layer
    code = """
from smoke_tests.encoder import PARAMETERS, BERT_BASE, Encoder
import torch
with torch.device("meta"):
    made = Encoder(BERT_BASE)
print(json.dumps([PARAMETERS, sum(weight.numel() for weight in made.parameters())]))
"""
    assert torch_prints(code) == [expected, expected]


@needs_torch
def test_a_layer_is_torchs_own_encoder_layer() -> None:
    """With the same weights, both layers give the same numbers."""
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
    assert torch_prints(code) < 1e-5


# A fake GPU for this check (with pretend_gpu.py). Its speed depends on the size of the products, its memory
# is the amount that the check allows, and it has TF32 if enabled. The encoder is small, so that the check
# ends soon.
SMALL_GPU = """
clock, room, plain, keep = [0.0], [1 << 60], account.product, account.add

class Event:
    def __init__(self, enable_timing):
        self.at = 0.0
    def record(self):
        self.at = clock[0]
    def elapsed_time(self, later):
        return later.at - self.at

def product(func, args, *options):
    if torch.get_float32_matmul_precision() == "high" and args[0].dtype == torch.float32:
        args = [(item.view(torch.int32) & ~0x1FFF).view(torch.float32) for item in args]
    found = plain(func, args, *options)
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
# Like SLOW_HOST, but with the clock of the small fake GPU.
SLOW_CLOCK = """
class Slow(torch.autocast):
    def __exit__(self, *raised):
        clock[0] += 1000
        return super().__exit__(*raised)

torch.autocast = Slow
"""
SMALL_CHECK = """
from functools import partial
from smoke_tests import encoder, finetune, measure, test_benchmark
small = encoder.Shape(layers=1, width=32, heads=2, inner=128, vocabulary=500, positions=512)
encoder.PARAMETERS = sum(weight.numel() for weight in encoder.Encoder(small).parameters())
encoder.Classifier = partial(encoder.Classifier, small)
encoder.sentences = partial(encoder.sentences, vocabulary=small.vocabulary)
finetune.LEARNING_RATE = 1e-2
test_benchmark.BATCH, test_benchmark.LAUNCHES = 4, (1, 1)
test_benchmark.TIMED = {128: (16, 1, 2), 512: (16, 1, 2)}
test_benchmark.BUDGET, test_benchmark.CURVE, test_benchmark.CURVE_BATCH = 6 << 20, 50, 8
VALUES = {**test_benchmark.VALUES["benchmark"]}
VALUES["parameters"] = {"equals": encoder.PARAMETERS}
VALUES["batch"], VALUES["budget"] = {"equals": 4}, {"equals": 6 << 20}
VALUES["timed_batch"], VALUES["build_cuda"] = {"equals": {"128": 16, "512": 16}}, {"type": "any"}
result = measure.Measure(VALUES, {}.__getitem__)
test_benchmark.test_benchmark(result)
print(json.dumps([result.measured, result.faults()]))
"""


@pytest.mark.parametrize(
    ("mutant", "names"),
    [
        ("", []),
        (NO_AUTOCAST, [f"{name}_{length}" for length in LENGTHS for name in ("speed", "memory", "batch")]),
        (ALWAYS_TF32, ["fp32_product_error"]),
        (NO_STEP, ["loss_fall_fp32", "loss_fall_fp16"]),
        (
            SLOW_CLOCK,
            [f"{name}_{length}" for length in LENGTHS for name in ("largest_launch_share", "speed")],
        ),
    ],
    ids=["sound", "no autocast", "TF32 left on", "no step", "a slow host"],
)
@needs_torch
@without_gpu
def test_each_bound_fails_on_a_small_fake_gpu(mutant: str, names: list[str]) -> None:
    """Each mutant breaks its values. The logits are always out of bounds, because they show the fake GPU."""
    measured, faults = torch_prints(SMALL_CHECK, PRETEND + SMALL_GPU + mutant)
    where = {f"logits_{length}" for length in LENGTHS}
    found = [fault.split(":")[0] for fault in faults]

    assert where <= set(found)
    assert [name for name in found if name not in where] == names
    assert len(measured["loss_fp16"]) == 50
    for length in LENGTHS:
        times = measured[f"step_ms_{length}"]
        assert measured[f"step_ms_spread_{length}"] == {name: spread(times[name]) for name in times}


STEPS = f"""
from smoke_tests import finetune
from smoke_tests.encoder import Classifier, Shape, sentences
finetune.LEARNING_RATE = 1e-2
model = Classifier({TINY})
words, classes = sentences(60 * 16, 16, seed=0, vocabulary=500)
result = {{}}
for precision in ("fp32", "tf32", "bf16"):
    one = finetune.Training(model, precision, device="cpu")
    result[precision] = [one.logits, finetune.losses(one, words, classes, steps=60), one.logits]
print(json.dumps(result))
"""


@needs_torch
def test_a_small_encoder_learns_alike_at_each_precision() -> None:
    """Each training starts with the same weights; autocast reports the type of the products."""
    result = torch_prints(STEPS)
    assert {name: one[2] for name, one in result.items()} == {
        "fp32": "torch.float32 on cpu",
        "tf32": "torch.float32 on cpu",
        "bf16": "torch.bfloat16 on cpu",
    }
    curves = {name: one[1] for name, one in result.items()}
    assert all(len(curve) == 60 and fall(curve) < 0.5 for curve in curves.values())
    assert curves["fp32"][0] == pytest.approx(curves["bf16"][0], rel=0.02)
    assert widest_gap(curves["fp32"], curves["bf16"]) < 0.3


@needs_torch
def test_a_small_encoder_without_steps_does_not_learn() -> None:
    assert all(fall(curve[1]) > 0.8 for curve in torch_prints(STEPS, NO_STEP).values())


@needs_torch
def test_the_rate_rises_and_falls() -> None:
    code = "from smoke_tests import finetune\n"
    most, rates = torch_prints(code + "print(json.dumps([finetune.LEARNING_RATE, finetune.rates(200)]))")
    top = rates.index(max(rates))

    assert (len(rates), rates[top], top) == (200, most, 19)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[0] == pytest.approx(most / 20)
    assert 0 < rates[-1] < most / 100


@needs_torch
def test_sentences_depend_on_the_seed_and_their_class() -> None:
    """A quarter of the words of each sentence belong to its class, the others to none."""
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
    same, equal, whole, least, most, classes, inside = torch_prints(code)
    assert (same, equal, whole, inside) == (True, False, True, True)
    assert 80 < least < 128 < most < 180
    assert classes == list(range(8))


@needs_torch
def test_all_settings_of_tf32_agree() -> None:
    """torch 2.9 and newer have two sets of settings, and raise if the sets disagree when they are read."""
    code = """
import torch
from smoke_tests.torch_api import tensor_float
def switches():
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    found = [torch.get_float32_matmul_precision() != "highest", cuda.allow_tf32, cudnn.allow_tf32]
    if hasattr(cuda, "fp32_precision"):
        found += [one.fp32_precision == "tf32" for one in (cuda, cudnn.conv, cudnn.rnn)]
    return found
result = []
for allowed in (True, False, True, False):
    tensor_float(allowed)
    result.append(switches())
print(json.dumps(result))
"""
    result = torch_prints(code)
    assert [set(item) for item in result] == [{True}, {False}, {True}, {False}]


@pytest.mark.parametrize(
    ("most", "first", "grain"), [(45, 8, 1), (8, 8, 1), (7, 8, 1), (0, 8, 1), (190, 32, 4), (64, 32, 4)]
)
def test_the_largest_batch_is_found_with_few_trials(most: int, first: int, grain: int) -> None:
    tried: list[int] = []

    def fits(batch: int) -> bool:
        tried.append(batch)
        return batch <= most

    assert most - grain < largest(fits, first, grain) <= most
    assert len(tried) <= 12
    assert len(set(tried)) == len(tried)


def test_the_trend_of_a_curve_counts_and_not_its_noise() -> None:
    noise = [0.5 * (-1) ** step for step in range(200)]
    flat = [2.0 + item for item in noise]
    steep = [2.0 * 0.9**step for step in range(200)]

    assert fall(flat) == pytest.approx(0.8)  # relative to a first value of 2.5
    assert fall(steep) < 1e-3
    assert widest_gap(flat, [2.0] * 200) == pytest.approx(0)
    assert widest_gap(flat, steep) > 1.9
    assert len(smoothed(flat)) == 200 - WINDOW + 1


def test_a_curve_with_nan_fails() -> None:
    whole = [2.0] * 200
    assert math.isnan(widest_gap(whole, [*whole[:150], math.nan, *whole[151:]]))
    assert math.isnan(fall([*whole[:-1], math.nan]))


def test_a_spread_has_the_extremes_and_the_median() -> None:
    assert spread([3.0, 1.0, 9.0, 2.0]) == {"minimum": 1.0, "median": 2.5, "maximum": 9.0}


def test_figures_are_five() -> None:
    assert [figures(value) for value in (1234567.0, 0.000123456789, 2.0)] == [1234600.0, 0.00012346, 2.0]
