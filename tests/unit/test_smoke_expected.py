"""The expected values of the checks that depend on the lock: variables, cases of libraries, operators."""

from __future__ import annotations

import math
from typing import Any

import pytest

from smoke_tests.closeness import ratio
from smoke_tests.expected import expected, is_setting


def locked(*wheels: str, **env: str) -> dict[str, Any]:
    """Facts of a lock with *wheels*, NAME or NAME==VERSION, and variables."""
    pairs = [wheel.partition("==") for wheel in wheels]
    return {"wheels": [{"name": name, "version": version or "1"} for name, _, version in pairs], "env": env}


@pytest.mark.parametrize(
    "name",
    [
        *(
            "CUDA_LAUNCH_BLOCKING",
            "PYTORCH_NO_CUDA_MEMORY_CACHING",
            "NVIDIA_TF32_OVERRIDE",
            "TORCH_COMPILE_DISABLE",
        ),
        *("CUBLAS_WORKSPACE_CONFIG", "TORCHINDUCTOR_MAX_AUTOTUNE", "CUDA_MODULE_LOADING", "PYTORCH_JIT"),
    ],
)
def test_a_variable_that_changes_torch_is_a_setting(name: str) -> None:
    assert is_setting(name)


@pytest.mark.parametrize(
    "name",
    [
        *("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "TORCH_HOME", "TORCHKILN_INDEX", "TORCHINDUCTOR_CACHE_DIR"),
        *("OMP_NUM_THREADS", "NCCL_DEBUG", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "PATH", "HOME"),
    ],
)
def test_places_threads_and_what_the_host_passes_on_are_no_settings(name: str) -> None:
    assert not is_setting(name)


def test_the_variables_of_the_lock_are_expected() -> None:
    facts = locked(PATH="/usr/bin", PYTORCH_ALLOC_CONF="x", CUDA_HOME="/usr/local/cuda")
    assert expected("set_variables", facts, {}) == {"PYTORCH_ALLOC_CONF": "x"}
    assert expected("set_variables", {"wheels": []}, {}) == {}


def test_nvidias_wheels_are_those_of_the_lock() -> None:
    facts = locked("torch", "nvidia-new-cu13", "cuda-bindings", "numpy")
    assert expected("nvidia_wheels", facts, {}) == ["cuda-bindings", "nvidia-new-cu13"]


def test_curand_is_called_if_it_is_locked() -> None:
    with_curand = expected("library_cases", locked("nvidia-curand-cu12"), {})
    assert "curand" in with_curand
    assert expected("library_cases", locked("torch"), {}) == [one for one in with_curand if one != "curand"]


@pytest.mark.parametrize(
    ("wheels", "operators"),
    [
        ((), []),
        (("torchaudio==2.0.2",), ["rnnt_loss"]),
        (("torchaudio==2.11.0+cu130",), ["rnnt_loss", "forced_align", "cuda_ctc_decoder"]),
    ],
)
def test_the_operators_are_those_of_the_locked_torchaudio(
    wheels: tuple[str, ...], operators: list[str]
) -> None:
    assert expected("vision_audio_operators", locked(*wheels), {}) == operators
    vision = expected("vision_audio_operators", locked("torchvision", *wheels), {})
    assert vision[-len(operators) or len(vision) :] == operators
    assert vision[:1] == ["nms"]


def test_a_ratio_to_nothing_is_within_no_bound() -> None:
    assert ratio(1, 4) == 0.25
    assert math.isnan(ratio(0, 0))
