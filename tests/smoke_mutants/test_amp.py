"""Mutants of cuda, autocast-matmul, bf16, grad-scaler, clip and accumulate: no GPU, or half precision that is
only said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.smoke_mutants.mutant import broken, check, needs_gpus, needs_torch
from tests.smoke_mutants.pretended import SCALER, anywhere, broken_by, skip_unless_it_applies

NO_AUTOCAST = """
import torch
class Off(torch.autocast):
    def __init__(self, device, **options):
        super().__init__(device, **(options | {"enabled": False}))
torch.autocast = Off
"""
BFLOAT = """
import torch
class BFloat(torch.autocast):
    def __init__(self, device, **options):
        super().__init__(device, **(options | {"dtype": torch.bfloat16}))
torch.autocast = BFloat
"""
# The product is FP32's, and only what comes out is made to look like half precision's.
ROUNDED_LATE = """
import torch
real = torch.Tensor.__matmul__
def product(left, right):
    if left.dtype != torch.float32 or not torch.is_autocast_enabled():
        return real(left, right)
    with torch.autocast("cuda", enabled=False):
        return real(left, right).half()
torch.Tensor.__matmul__ = product
"""
HALF_SOFTMAX = """
import torch
real = torch.nn.functional.softmax
def softmax(*arguments):
    with torch.autocast("cuda", enabled=False):
        return real(*arguments)
torch.nn.functional.softmax = softmax
"""
NEVER_ENDS = "import torch\ntorch.autocast.__exit__ = lambda self, *error: None\n"

NOT_ENABLED = SCALER + (
    "real = amp.GradScaler\n"
    "amp.GradScaler = lambda *place, **options: real(*place, **(options | {'enabled': False}))\n"
)
ALWAYS_STEPS = SCALER + (
    "def step(self, optimizer, state, *more, **options):\n"
    "    return optimizer.step(*more, **options)\n"
    "amp.GradScaler._maybe_opt_step = step\n"
)
FIXED_AT_1 = SCALER + (
    "real = amp.GradScaler\n"
    "def fixed(*place, **options):\n"
    "    made = real(*place, **(options | {'init_scale': 1.0}))\n"
    "    made._growth_factor = made._backoff_factor = 1.0\n"
    "    return made\n"
    "amp.GradScaler = fixed\n"
)
NEVER_GROWS = SCALER + (
    "real = amp.GradScaler\n"
    "amp.GradScaler = lambda *place, **options: real(*place, **(options | {'growth_interval': 10**6}))\n"
)
NEVER_BACKS_OFF = SCALER + (
    "real = amp.GradScaler\n"
    "def made(*place, **options):\n"
    "    made = real(*place, **options)\n"
    "    made._backoff_factor = 1.0\n"
    "    return made\n"
    "amp.GradScaler = made\n"
)
# The gradients are looked at for infinities and stay as they are.
UNSCALES_NOTHING = SCALER + (
    "real = amp.GradScaler.unscale_\n"
    "def unscale_(self, optimizer):\n"
    "    real(self, optimizer)\n"
    "    for group in optimizer.param_groups:\n"
    "        for parameter in group['params']:\n"
    "            parameter.grad.mul_(self.get_scale())\n"
    "amp.GradScaler.unscale_ = unscale_\n"
)
NEVER_STEPS = SCALER + (
    "amp.GradScaler._maybe_opt_step = lambda self, optimizer, state, *more, **options: None\n"
)
NO_SCALE_ON_LOSS = SCALER + (
    "real = amp.GradScaler.scale\n"
    "def scale(self, loss):\n"
    "    real(self, loss)\n"
    "    return loss\n"
    "amp.GradScaler.scale = scale\n"
)
NO_CLIPPING = """
import torch
def clip(parameters, limit):
    return torch.cat([one.grad.flatten() for one in parameters]).norm()
torch.nn.utils.clip_grad_norm_ = clip
"""
# unscale_ comes too late: what a training loop without it does, that clips before scaler.step.
UNSCALES_LATE = SCALER + (
    "real, step = amp.GradScaler.unscale_, amp.GradScaler.step\n"
    "amp.GradScaler.unscale_ = lambda self, optimizer: None\n"
    "def late(self, optimizer):\n"
    "    real(self, optimizer)\n"
    "    return step(self, optimizer)\n"
    "amp.GradScaler.step = late\n"
)
DIVIDES_NOT = "import torch\ntorch.Tensor.__truediv__ = lambda self, other: self\n"
# backward puts its gradient in the place of what was there.
REPLACES = """
import gc, torch
real = torch.Tensor.backward
def backward(self, **options):
    for one in gc.get_objects():
        if type(one) is torch.nn.Parameter:
            one.grad = None
    real(self, **options)
torch.Tensor.backward = backward
"""

NO_GPU = "torch reaches no GPU (is_available is False)"

SCALER_MUTANTS = {
    "not enabled": (
        NOT_ENABLED,
        ["is_enabled", "first_scale", "scales", "moved_by_inf", "backed_off", "error_with_scale"],
    ),
    "a step that always runs": (ALWAYS_STEPS, ["moved_by_inf"]),
    "a step that never runs": (NEVER_STEPS, ["moved_error", "moved_afterwards"]),
    "a scale fixed at 1": (FIXED_AT_1, ["first_scale", "scales", "backed_off", "error_with_scale"]),
    "growth that never comes": (NEVER_GROWS, ["scales"]),
    "a scale that never backs off": (NEVER_BACKS_OFF, ["backed_off"]),
}
CLIP_MUTANTS = {
    "no clipping": (NO_CLIPPING, ["norm_after", "moved_after", "norm_before"]),
    "unscaled too late": (UNSCALES_LATE, ["told_norm", "moved_after", "norm_before", "norm_before_small"]),
    "not enabled": (NOT_ENABLED, ["norm_before", "norm_before_small"]),
}


@needs_gpus(1)
@pytest.mark.parametrize("id", ["cuda", "autocast-matmul"])
def test_it_passes_in_a_sound_environment(id: str, tmp_path: Path) -> None:
    told = check(id, tmp_path)
    assert (told["outcome"], told["message"]) == ("passed", "")


@needs_torch
@pytest.mark.parametrize("id", ["autocast-matmul", "bf16", "grad-scaler", "clip", "accumulate"])
def test_it_fails_without_a_gpu(id: str, tmp_path: Path) -> None:
    """A GPU's place is never taken by the CPU; a torch without CUDA is this test's mutant too."""
    told = check(id, tmp_path, CUDA_VISIBLE_DEVICES="")
    assert told["outcome"] == "failed"
    assert re.search("CUDA|NVIDIA", told["message"])


@needs_torch
def test_cuda_fails_without_a_gpu(tmp_path: Path) -> None:
    told = check("cuda", tmp_path, CUDA_VISIBLE_DEVICES="")
    assert (told["outcome"], broken(told)[0]) == ("failed", NO_GPU)


@needs_gpus(1)
def test_cuda_fails_where_torch_finds_none_of_the_gpus_that_are_there(tmp_path: Path) -> None:
    """As a torch that was built for the CPU alone does."""
    told = check("cuda", tmp_path, "import torch\ntorch.cuda.is_available = lambda: False\n")
    assert (told["outcome"], broken(told)[0]) == ("failed", NO_GPU)
    assert told["measured"]["exposed"] >= 1


@needs_gpus(1)
@pytest.mark.parametrize(
    ("mutant", "names"),
    [
        (
            "torch.cuda.device_count = lambda: 0",
            ["device_count", "names", "capabilities", "served", "wrong_sums"],
        ),
        ("torch.cuda.get_arch_list = lambda: ['sm_50']", ["served"]),
        ("torch.version.cuda = '99.0'\ntorch.cuda.get_arch_list = lambda: ['compute_50']", ["served"]),
        (
            "real = torch.cumsum\ntorch.cumsum = lambda numbers, axis: real(numbers, axis).float().long()",
            ["wrong_sums"],
        ),
    ],
    ids=["no GPU found", "no code for it", "PTX too new for the driver", "inexact kernel"],
)
def test_cuda_fails(mutant: str, names: list[str], tmp_path: Path) -> None:
    told = check("cuda", tmp_path, f"import torch\n{mutant}\n")
    assert (told["outcome"], broken(told)) == ("failed", names)


@needs_gpus(1)
@pytest.mark.parametrize(
    ("mutant", "names"),
    [
        (NO_AUTOCAST, ["autocast_enabled", "dtype", "kept_of_2**-12"]),
        (BFLOAT, ["dtype", "wrong_elements", "relative_error"]),
        (ROUNDED_LATE, ["kept_of_2**-12"]),
        (HALF_SOFTMAX, ["softmax"]),
        (NEVER_ENDS, ["outside"]),
    ],
    ids=["autocast off", "to bf16", "rounded late", "softmax in half precision", "autocast that never ends"],
)
def test_autocast_matmul_fails(mutant: str, names: list[str], tmp_path: Path) -> None:
    told = check("autocast-matmul", tmp_path, mutant)
    assert (told["outcome"], broken(told)) == ("failed", names)


@anywhere
@pytest.mark.parametrize(
    ("mutant", "names"),
    [("", []), (NO_AUTOCAST, ["dtype", "kept_of_2**-12"])],
    ids=["sound", "autocast off"],
)
def test_bf16_and_its_mutant(mutant: str, names: list[str], pretend: bool, tmp_path: Path) -> None:
    skip_unless_it_applies("bf16")
    assert broken_by(mutant, "bf16", tmp_path, pretend=pretend) == names


@anywhere
@pytest.mark.parametrize(
    ("mutant", "names"), [("", []), *SCALER_MUTANTS.values()], ids=["sound", *SCALER_MUTANTS]
)
def test_grad_scaler_and_its_mutants(mutant: str, names: list[str], pretend: bool, tmp_path: Path) -> None:
    assert broken_by(mutant, "grad-scaler", tmp_path, pretend=pretend) == names


@anywhere
@pytest.mark.parametrize(
    ("mutant", "names"),
    [
        (UNSCALES_NOTHING, {"gradient_error", "moved_error"}),
        (NO_SCALE_ON_LOSS, {"scaled_over_loss", "gradient_error", "moved_error"}),
    ],
    ids=["gradients stay scaled", "the loss is not scaled"],
)
def test_grad_scaler_fails_where_scale_and_unscale_do_not_match(
    mutant: str, names: set[str], pretend: bool, tmp_path: Path
) -> None:
    """The weights then go where they should not, and what comes after differs by chance."""
    assert names <= set(broken_by(mutant, "grad-scaler", tmp_path, pretend=pretend))


@anywhere
@pytest.mark.parametrize(
    ("mutant", "names"), [("", []), *CLIP_MUTANTS.values()], ids=["sound", *CLIP_MUTANTS]
)
def test_clip_and_its_mutants(mutant: str, names: list[str], pretend: bool, tmp_path: Path) -> None:
    assert broken_by(mutant, "clip", tmp_path, pretend=pretend) == names


@anywhere
@pytest.mark.parametrize(
    ("mutant", "names"),
    [
        ("", []),
        (DIVIDES_NOT, ["gradient_error", "step_error", "fp32_error"]),
        (REPLACES, ["gradient_error", "step_error", "fp32_error"]),
    ],
    ids=["sound", "divided by nothing", "gradients replaced"],
)
def test_accumulate_and_its_mutants(mutant: str, names: list[str], pretend: bool, tmp_path: Path) -> None:
    assert broken_by(mutant, "accumulate", tmp_path, pretend=pretend) == names
