"""Mutants of cudnn, sdpa and fp8: another library instead of torch's, or another computation."""

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
    result = check(id, tmp_path)
    assert (result["outcome"], result["message"]) == ("passed", "")


@needs_gpus(1)
@needs_gcc
@pytest.mark.parametrize(
    ("part", "by", "name"),
    [(0, -1, "major_difference"), (1, None, "minor_difference"), (2, 1, "locked")],
    ids=["older major", "minor 0", "another patch"],
)
def test_cudnn_fails_with_another_cudnn(part: int, by: int | None, name: str, tmp_path: Path) -> None:
    version = [int(number) for number in (environment()["claims"]["cudnn"] or "9.0.0").split(".")[:3]]
    version[part] = version[part] + by if by is not None else 0
    result = check("cudnn", tmp_path, **another_cudnn(tmp_path, (version[0], version[1], version[2])))
    assert result["outcome"] == "failed"
    assert name in broken(result)
    assert set(broken(result)) <= {"major_difference", "minor_difference", "locked"}


def parts_of_cudnn() -> tuple[str, ...]:
    """The libraries of the cuDNN that this torch needs."""
    if (environment()["claims"]["cudnn"] or "9").startswith("8"):
        return tuple(f"{part}_{use}" for part in ("ops", "cnn", "adv") for use in ("infer", "train"))
    engines = ("engines_precompiled", "engines_runtime_compiled")
    return ("graph", "ops", "cnn", "adv", "heuristic", *engines)


@needs_gpus(1)
@needs_gcc
def test_cudnn_fails_without_one_of_its_libraries_and_names_it(tmp_path: Path) -> None:
    for part in parts_of_cudnn():
        folder = tmp_path / part
        folder.mkdir()
        result = check("cudnn", folder, **without_library(folder, f"libcudnn_{part}.so"))
        assert broken(result) == ["libraries_not_loadable"], part
        assert f"libcudnn_{part}.so" in result["message"]


@needs_gpus(1)
@needs_gcc
def test_cudnn_fails_without_the_library_itself(tmp_path: Path) -> None:
    """Without the library, torch cannot be imported."""
    result = check("cudnn", tmp_path, **without_library(tmp_path, "libcudnn.so"))
    assert result["outcome"] == "failed"
    assert "libcudnn.so" in result["message"]


@needs_gpus(1)
def test_cudnn_fails_if_another_implementation_computes(tmp_path: Path) -> None:
    result = check("cudnn", tmp_path, "import torch\ntorch.backends.cudnn.enabled = False")
    assert broken(result)[:3] == ["acceptable", "convolution_by", "recurrent_by"]
    # Then cuDNN's libraries are not in use either, unless a version check has loaded them.
    assert set(broken(result)[3:]) <= {"libraries_not_used"}


# FP32 factors lose thirteen bits, as in TF32.
ALWAYS_TF32 = """
import torch
import torch.nn.functional as functional
real = functional.conv2d

def rounded(x):
    if x.dtype != torch.float32:
        return x
    rounded_bits = ((x.detach().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    return x + (rounded_bits - x.detach())

functional.conv2d = lambda image, filters, **options: real(rounded(image), rounded(filters), **options)
"""


@needs_gpus(1)
def test_cudnn_fails_if_tf32_cannot_be_disabled(tmp_path: Path) -> None:
    result = check("cudnn", tmp_path, ALWAYS_TF32)
    assert "output_error" in broken(result)


@needs_gpus(1)
def test_cudnn_fails_if_the_environment_forces_tf32(tmp_path: Path) -> None:
    """cuBLAS follows the variable. Convolutions still run without tensor cores."""
    result = check("cudnn", tmp_path, NVIDIA_TF32_OVERRIDE="1")
    assert "product_error" in broken(result)
    assert set(broken(result)) <= {name for name in result["measured"] if name.endswith("_error")}


ONLY_MATH = (
    "import torch.nn.attention as attention\nreal = attention.sdpa_kernel\n"
    "attention.sdpa_kernel = lambda backends: real(attention.SDPBackend.MATH)"
)
ANY_BACKEND = (
    "import contextlib, torch.nn.attention as attention\n"
    "attention.sdpa_kernel = lambda backends: contextlib.nullcontext()"
)
NEVER_CAUSAL = (
    "import torch.nn.functional as functional\nreal = functional.scaled_dot_product_attention\n"
    "functional.scaled_dot_product_attention = lambda q, k, v, is_causal=False: real(q, k, v)"
)
UNMASKED = {f"{backend}_causal_{name}" for backend in ("flash", "math") for name in ("output", "q", "k", "v")}


@needs_gpus(1)
@pytest.mark.parametrize("mutant", [ONLY_MATH, ANY_BACKEND], ids=["math twice", "whatever torch takes"])
def test_sdpa_fails_if_flash_is_not_forced(mutant: str, tmp_path: Path) -> None:
    skip_unless_it_applies("sdpa")
    result = check("sdpa", tmp_path, mutant)
    assert result["outcome"] == "failed"
    assert "float32_by_flash" in broken(result)
    made_by = {"flash_full_made_by", "flash_causal_made_by"}
    assert mutant == ANY_BACKEND or made_by < set(broken(result))


@needs_gpus(1)
def test_sdpa_fails_if_the_future_is_not_masked(tmp_path: Path) -> None:
    skip_unless_it_applies("sdpa")
    result = check("sdpa", tmp_path, NEVER_CAUSAL)
    assert result["outcome"] == "failed"
    assert set(broken(result)) == UNMASKED


@needs_torch
@without_gpu
def test_sdpa_on_the_cpu_fails_only_in_the_implementation(tmp_path: Path) -> None:
    """The CPU has another flash attention, which accepts FP32."""
    others = {"float32_by_flash", "flash_full_made_by", "flash_causal_made_by"}
    (tmp_path / "sound").mkdir()
    (tmp_path / "mutant").mkdir()
    assert set(broken(check("sdpa", tmp_path / "sound", PRETEND))) == others
    assert set(broken(check("sdpa", tmp_path / "mutant", PRETEND + NEVER_CAUSAL))) == others | UNMASKED


def without_scale(*names: str) -> str:
    """A mutant whose product uses 1 for the scales of *names*."""
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
def test_fp8_on_the_cpu_fails_only_in_the_device(pretend: bool, tmp_path: Path) -> None:
    if not pretend:
        skip_unless_it_applies("fp8")
    assert broken_by("", "fp8", tmp_path, pretend=pretend) == []


@anywhere
@pytest.mark.parametrize("names", SCALES, ids="-".join)
def test_fp8_fails_if_scales_are_ignored(names: tuple[str, ...], pretend: bool, tmp_path: Path) -> None:
    if not pretend:
        skip_unless_it_applies("fp8")
    assert broken_by(without_scale(*names), "fp8", tmp_path, pretend=pretend) == WRONG_PRODUCTS
