"""Mutants of cuda, grad-scaler, clip and accumulate: no GPU, TF32, or a scaler that does not work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.smoke_mutants.mutant import broken, check, needs_gpus, needs_torch
from tests.smoke_mutants.pretended import SCALER, anywhere, broken_by, faults_by, skip_unless_it_applies

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
# The gradients are checked for infinities, and stay scaled.
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
# A gradient that is not finite is still not finite after it is unscaled, and then `found` is 1.
BLIND = """
import torch
real = torch._amp_foreach_non_finite_check_and_unscale_
def check(gradients, found, inverse):
    before = found.clone()
    real(gradients, found, inverse)
    if not any(bool(({seen}).any()) for gradient in gradients{part}):
        found.copy_(before)
torch._amp_foreach_non_finite_check_and_unscale_ = check
"""
SEES_NO_NAN = BLIND.format(seen="gradient.isinf()", part="")
SEES_NO_INF = BLIND.format(seen="gradient.isnan() | (gradient == -torch.inf)", part="")
SEES_NO_MINUS_INF = BLIND.format(seen="gradient.isnan() | (gradient == torch.inf)", part="")
SEES_THE_FIRST = BLIND.format(seen="~gradient.isfinite()", part="[:1]")
SEES_THE_LAST = BLIND.format(seen="~gradient.isfinite()", part="[-1:]")
BLIND_IN_FUSED = SCALER + (
    "real = amp.GradScaler._check_inf_per_device\n"
    "def check(self, optimizer):\n"
    "    found = real(self, optimizer)\n"
    "    for tensor in found.values():\n"
    "        tensor.zero_()\n"
    "    return found\n"
    "amp.GradScaler._check_inf_per_device = check\n"
)
# The optimizer's kernel takes the step although the scaler has found an inf.
FUSED_ALWAYS_STEPS = """
import torch
real = torch._fused_adamw_
torch._fused_adamw_ = lambda *tensors, **options: real(*tensors, **(options | {"found_inf": None}))
"""
FOREACH_ALWAYS_STEPS = SCALER + (
    "real = amp.GradScaler._maybe_opt_step\n"
    "def step(self, optimizer, state, *more, **options):\n"
    "    if optimizer.defaults['foreach']:\n"
    "        return optimizer.step(*more, **options)\n"
    "    return real(self, optimizer, state, *more, **options)\n"
    "amp.GradScaler._maybe_opt_step = step\n"
)
# An optimizer's step is skipped if a gradient of an earlier optimizer is not finite.
SKIPS_TOGETHER = SCALER + (
    "real = amp.GradScaler._maybe_opt_step\n"
    "def step(self, optimizer, state, *more, **options):\n"
    "    states = self._per_optimizer_states.values()\n"
    "    found = [value for one in states for value in one['found_inf_per_device'].values()]\n"
    "    return real(self, optimizer, {'found_inf_per_device': dict(enumerate(found))}, *more, **options)\n"
    "amp.GradScaler._maybe_opt_step = step\n"
)
UPDATES_BY_THE_FIRST = SCALER + (
    "real = amp.GradScaler.update\n"
    "def update(self, *scale):\n"
    "    for state in list(self._per_optimizer_states.values())[1:]:\n"
    "        for found in state['found_inf_per_device'].values():\n"
    "            found.zero_()\n"
    "    real(self, *scale)\n"
    "amp.GradScaler.update = update\n"
)
NO_CLIPPING = """
import torch
def clip(parameters, limit):
    return torch.cat([one.grad.flatten() for one in parameters]).norm()
torch.nn.utils.clip_grad_norm_ = clip
"""
# unscale_ comes too late, as in a training loop that does not call it and clips before scaler.step.
UNSCALES_LATE = SCALER + (
    "real, step = amp.GradScaler.unscale_, amp.GradScaler.step\n"
    "amp.GradScaler.unscale_ = lambda self, optimizer: None\n"
    "def late(self, optimizer):\n"
    "    real(self, optimizer)\n"
    "    return step(self, optimizer)\n"
    "amp.GradScaler.step = late\n"
)
DIVIDES_NOT = "import torch\ntorch.Tensor.__truediv__ = lambda self, other: self\n"
# backward replaces the gradients instead of adding to them.
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

MISSED = ["moved_by_overflow", "scale_not_halved", "not_moved_afterwards"]
NO_GPU = "torch reaches no GPU (is_available is False)"

SCALER_MUTANTS = {
    "not enabled": (NOT_ENABLED, ["is_enabled", "first_scale", "scales", *MISSED, "error_with_scale"]),
    "a step that is always taken": (ALWAYS_STEPS, ["moved_by_overflow", "not_moved_afterwards"]),
    "a step that is never taken": (NEVER_STEPS, ["moved_error", "other_not_moved", "not_moved_afterwards"]),
    "a scale fixed at 1": (FIXED_AT_1, ["first_scale", "scales", "scale_not_halved", "error_with_scale"]),
    "a scale that never grows": (NEVER_GROWS, ["scales"]),
    "a scale that is never halved": (NEVER_BACKS_OFF, ["scale_not_halved"]),
}
# As above, with a pattern for the cases that fail as the third item.
OVERFLOW_MUTANTS = {
    "blind to NaN": (SEES_NO_NAN, MISSED, ": nan"),
    "blind to inf": (SEES_NO_INF, MISSED, ": inf"),
    "blind to -inf": (SEES_NO_MINUS_INF, MISSED, ": -inf"),
    "looks only at the first gradient": (SEES_THE_FIRST, MISSED, "(middle|last)"),
    "looks only at the last gradient": (SEES_THE_LAST, MISSED, "(first|middle)"),
    "blind in a fused optimizer": (BLIND_IN_FUSED, MISSED, "AdamW fused"),
    "a fused step that is always taken": (
        FUSED_ALWAYS_STEPS,
        ["moved_by_overflow", "not_moved_afterwards"],
        "AdamW fused",
    ),
    "a foreach step that is always taken": (
        FOREACH_ALWAYS_STEPS,
        ["moved_by_overflow", "not_moved_afterwards"],
        "foreach",
    ),
    "two optimizers that skip together": (SKIPS_TOGETHER, ["other_not_moved"], "optimizer 1"),
    "only the first optimizer halves the scale": (UPDATES_BY_THE_FIRST, ["scale_not_halved"], "optimizer 2"),
}
CLIP_MUTANTS = {
    "no clipping": (NO_CLIPPING, ["norm_after", "moved_after", "norm_before"]),
    "unscaled too late": (
        UNSCALES_LATE,
        ["returned_norm", "moved_after", "norm_before", "norm_before_small"],
    ),
    "not enabled": (NOT_ENABLED, ["norm_before", "norm_before_small"]),
}


@needs_gpus(1)
def test_cuda_passes_in_a_sound_environment(tmp_path: Path) -> None:
    result = check("cuda", tmp_path)
    assert (result["outcome"], result["message"]) == ("passed", "")


@needs_torch
@pytest.mark.parametrize("id", ["autocast-matmul", "bf16", "grad-scaler", "clip", "accumulate"])
def test_it_fails_without_a_gpu(id: str, tmp_path: Path) -> None:
    """Without a GPU, no check uses the CPU instead. A torch without CUDA is also a mutant here."""
    result = check(id, tmp_path, CUDA_VISIBLE_DEVICES="")
    assert result["outcome"] == "failed"
    assert re.search("CUDA|NVIDIA", result["message"])


@needs_torch
def test_cuda_fails_without_a_gpu(tmp_path: Path) -> None:
    result = check("cuda", tmp_path, CUDA_VISIBLE_DEVICES="")
    assert (result["outcome"], broken(result)[0]) == ("failed", NO_GPU)


@needs_gpus(1)
def test_cuda_fails_if_torch_finds_no_gpu(tmp_path: Path) -> None:
    """The check fails as with a torch that was built for the CPU only."""
    result = check("cuda", tmp_path, "import torch\ntorch.cuda.is_available = lambda: False\n")
    assert (result["outcome"], broken(result)[0]) == ("failed", NO_GPU)
    assert result["measured"]["exposed"] >= 1


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
    result = check("cuda", tmp_path, f"import torch\n{mutant}\n")
    assert (result["outcome"], broken(result)) == ("failed", names)


@needs_gpus(1)
def test_cuda_fails_if_tf32_is_forced(tmp_path: Path) -> None:
    skip_unless_it_applies("bf16")  # GPUs have TF32 from capability 8.0
    result = check("cuda", tmp_path, NVIDIA_TF32_OVERRIDE="1")
    assert (result["outcome"], broken(result)) == ("failed", ["fp32_product_error"])


@anywhere
@pytest.mark.parametrize(
    ("mutant", "names"), [("", []), *SCALER_MUTANTS.values()], ids=["sound", *SCALER_MUTANTS]
)
def test_grad_scaler_and_its_mutants(mutant: str, names: list[str], pretend: bool, tmp_path: Path) -> None:
    assert broken_by(mutant, "grad-scaler", tmp_path, pretend=pretend) == names


@anywhere
@pytest.mark.parametrize(("mutant", "names", "cases"), OVERFLOW_MUTANTS.values(), ids=list(OVERFLOW_MUTANTS))
def test_grad_scaler_fails_in_these_cases(
    mutant: str, names: list[str], cases: str, pretend: bool, tmp_path: Path
) -> None:
    faults = faults_by(mutant, "grad-scaler", tmp_path, pretend=pretend)
    assert [fault.split(":")[0] for fault in faults] == names
    found = [
        case
        for fault in faults
        for case in re.findall(r"\w[\w ]*: \S+ in the \w+ gradient of optimizer .", fault)
    ]
    assert len(found) >= 6
    assert [case for case in found if not re.search(cases, case)] == []


@anywhere
@pytest.mark.parametrize(
    ("mutant", "names"),
    [
        (UNSCALES_NOTHING, {"gradient_error", "moved_error"}),
        (NO_SCALE_ON_LOSS, {"scaled_over_loss", "gradient_error", "moved_error"}),
    ],
    ids=["gradients stay scaled", "the loss is not scaled"],
)
def test_grad_scaler_fails_if_scale_and_unscale_do_not_match(
    mutant: str, names: set[str], pretend: bool, tmp_path: Path
) -> None:
    """The weights then have wrong values; which other values are out of bounds depends on chance."""
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
