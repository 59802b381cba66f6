"""Mutants of cudnn, sdpa and fp8: another library in the place of torch's, or another way to the result."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.needs import needs_gcc
from tests.smoke_mutants.mutant import broken, check, environment, needs_gpus, needs_torch, without_gpu
from tests.smoke_mutants.pretended import (
    PRETEND,
    another_cudnn,
    anywhere,
    broken_by,
    skip_unless_it_applies,
    without_library,
)


@needs_gpus(1)
@pytest.mark.parametrize("id", ["cudnn", "sdpa"])
def test_it_passes_in_a_sound_environment(id: str, tmp_path: Path) -> None:
    skip_unless_it_applies(id)
    told = check(id, tmp_path)
    assert (told["outcome"], told["message"]) == ("passed", "")


@needs_gpus(1)
@needs_gcc
@pytest.mark.parametrize(
    ("part", "by", "name"),
    [(0, -1, "major"), (1, None, "minor"), (2, 1, "locked")],
    ids=["older major", "minor 0", "another patch"],
)
def test_cudnn_fails_where_another_one_answers(part: int, by: int | None, name: str, tmp_path: Path) -> None:
    version = [int(number) for number in (environment()["claims"]["cudnn"] or "9.0.0").split(".")[:3]]
    version[part] = version[part] + by if by is not None else 0
    told = check("cudnn", tmp_path, **another_cudnn(tmp_path, (version[0], version[1], version[2])))
    assert told["outcome"] == "failed"
    assert name in broken(told)
    assert set(broken(told)) <= {"major", "minor", "locked"}


@needs_gpus(1)
@needs_gcc
def test_cudnn_without_one_of_its_libraries_is_a_failure_with_a_name(tmp_path: Path) -> None:
    """It kills the process that asks for its version."""
    told = check("cudnn", tmp_path, **without_library(tmp_path, "libcudnn_graph"))
    assert told["outcome"] == "failed"
    assert "killed by SIG" in told["message"]


@needs_gpus(1)
def test_cudnn_fails_where_a_convolution_is_not_its_own(tmp_path: Path) -> None:
    told = check("cudnn", tmp_path, "import torch\ntorch.backends.cudnn.enabled = False")
    assert told["outcome"] == "failed"
    assert broken(told) == ["acceptable", "convolution_by"]


# FP32 factors lose thirteen of their bits, as TF32 takes them.
ALWAYS_TF32 = """
import torch
import torch.nn.functional as functional
real = functional.conv2d

def rounded(x):
    if x.dtype != torch.float32:
        return x
    kept = ((x.detach().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    return x + (kept - x.detach())

functional.conv2d = lambda image, filters, **options: real(rounded(image), rounded(filters), **options)
"""


@needs_gpus(1)
def test_cudnn_fails_where_tf32_cannot_be_turned_off(tmp_path: Path) -> None:
    told = check("cudnn", tmp_path, ALWAYS_TF32)
    assert told["outcome"] == "failed"
    assert "output_error" in broken(told)


ONLY_MATH = (
    "import torch.nn.attention as attention\nreal = attention.sdpa_kernel\n"
    "attention.sdpa_kernel = lambda wanted: real(attention.SDPBackend.MATH)"
)
ANY_BACKEND = (
    "import contextlib, torch.nn.attention as attention\n"
    "attention.sdpa_kernel = lambda wanted: contextlib.nullcontext()"
)
NEVER_CAUSAL = (
    "import torch.nn.functional as functional\nreal = functional.scaled_dot_product_attention\n"
    "functional.scaled_dot_product_attention = lambda q, k, v, is_causal=False: real(q, k, v)"
)
UNMASKED = {f"{backend}_causal_{name}" for backend in ("flash", "math") for name in ("output", "q", "k", "v")}


@needs_gpus(1)
@pytest.mark.parametrize("mutant", [ONLY_MATH, ANY_BACKEND], ids=["math twice", "whatever torch takes"])
def test_sdpa_fails_where_flash_is_not_forced(mutant: str, tmp_path: Path) -> None:
    skip_unless_it_applies("sdpa")
    told = check("sdpa", tmp_path, mutant)
    assert told["outcome"] == "failed"
    assert "float32_by_flash" in broken(told)
    made_by = {"flash_full_made_by", "flash_causal_made_by"}
    assert mutant == ANY_BACKEND or made_by < set(broken(told))


@needs_gpus(1)
def test_sdpa_fails_where_the_future_is_not_masked(tmp_path: Path) -> None:
    skip_unless_it_applies("sdpa")
    told = check("sdpa", tmp_path, NEVER_CAUSAL)
    assert told["outcome"] == "failed"
    assert set(broken(told)) == UNMASKED


@needs_torch
@without_gpu
def test_sdpa_on_the_cpu_holds_but_for_what_made_it(tmp_path: Path) -> None:
    """The CPU's flash is another one, and that one takes FP32."""
    others = {"float32_by_flash", "flash_full_made_by", "flash_causal_made_by"}
    (tmp_path / "sound").mkdir()
    (tmp_path / "mutant").mkdir()
    assert set(broken(check("sdpa", tmp_path / "sound", PRETEND))) == others
    assert set(broken(check("sdpa", tmp_path / "mutant", PRETEND + NEVER_CAUSAL))) == others | UNMASKED


def without_scale(*names: str) -> str:
    """A mutant whose product takes the scales of *names* for 1."""
    return (
        "import torch\nreal = torch._scaled_mm\n"
        "def product(a, b, **options):\n"
        f"    one = {{name: torch.ones_like(options[name]) for name in {names!r}}}\n"
        "    return real(a, b, **(options | one))\n"
        "torch._scaled_mm = product"
    )


WRONG_PRODUCTS = [
    f"{kind}_{name}" for kind in ("e4m3fn", "e5m2") for name in ("wrong_integers", "product_error", "error")
]
SCALES = [("scale_a", "scale_b"), ("scale_a",), ("scale_b",)]


@anywhere
def test_fp8s_values_hold_but_for_where_they_lie(pretend: bool, tmp_path: Path) -> None:
    if not pretend:
        skip_unless_it_applies("fp8")
    assert broken_by("", "fp8", tmp_path, pretend=pretend) == []


@anywhere
@pytest.mark.parametrize("names", SCALES, ids="-".join)
def test_fp8_fails_where_scales_are_ignored(names: tuple[str, ...], pretend: bool, tmp_path: Path) -> None:
    if not pretend:
        skip_unless_it_applies("fp8")
    assert broken_by(without_scale(*names), "fp8", tmp_path, pretend=pretend) == WRONG_PRODUCTS
