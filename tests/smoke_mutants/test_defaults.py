"""Mutants of defaults and gpu-defaults: start-up code or a variable changes torch's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.smoke_mutants.mutant import broken, check, needs_gpus, needs_torch

CHANGED = ["declared", "changed_at_start"]
# Start-up code, variables, the values that are out of bounds, and a setting that the message names.
MUTANTS = {
    "sound": ("", {}, [], ""),
    "TF32 for products": (
        "torch.set_float32_matmul_precision('high')",
        {},
        CHANGED,
        "matmul_precision is \"'high'\"",
    ),
    "no flash attention": (
        "torch.backends.cuda.enable_flash_sdp(False)",
        {},
        CHANGED,
        "flash_sdp_enabled is 'False'",
    ),
    "no cuDNN": ("torch.backends.cudnn.enabled = False", {}, CHANGED, "cudnn.enabled"),
    "cuDNN measures": ("torch.backends.cudnn.benchmark = True", {}, CHANGED, "cudnn.benchmark"),
    "another type": (
        "torch.set_default_dtype(torch.float64)",
        {},
        CHANGED,
        "get_default_dtype is 'torch.float64'",
    ),
    "another device": ("torch.set_default_device('meta')", {}, CHANGED, "empty(0).device"),
    "no gradients": ("torch.set_grad_enabled(False)", {}, CHANGED, "is_grad_enabled"),
    "deterministic": (
        "torch.use_deterministic_algorithms(True)",
        {},
        CHANGED,
        "are_deterministic_algorithms",
    ),
    "anomaly detection": ("torch.autograd.set_detect_anomaly(True)", {}, CHANGED, "is_anomaly_enabled"),
    "autocast's cache": ("torch.set_autocast_cache_enabled(False)", {}, CHANGED, "is_autocast_cache_enabled"),
    "a seed": ("torch.manual_seed(7)", {}, ["seeded"], "torch"),
    "a global hook": (
        "torch.nn.modules.module.register_module_forward_hook(lambda *one: None)",
        {},
        ["changed_at_start"],
        "_global_forward_hooks",
    ),
    "a compiler's setting": (
        "import torch._dynamo.config\ntorch._dynamo.config.suppress_errors = True",
        {},
        ["changed_at_start"],
        "dynamo.suppress_errors",
    ),
    "another function": (
        "torch.matmul = lambda left, right: left @ right",
        {},
        ["changed_at_start"],
        "torch.matmul",
    ),
    "a variable by start-up code": (
        "import os\nos.environ['CUBLAS_WORKSPACE_CONFIG'] = ':16:8'",
        {},
        ["variables"],
        "CUBLAS_WORKSPACE_CONFIG",
    ),
    "launches that wait": ("", {"CUDA_LAUNCH_BLOCKING": "1"}, ["variables"], "CUDA_LAUNCH_BLOCKING"),
    "no cache of memory": (
        "",
        {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        ["variables"],
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
    ),
    "TF32 for all libraries": ("", {"NVIDIA_TF32_OVERRIDE": "1"}, ["variables"], "NVIDIA_TF32_OVERRIDE"),
}


@needs_torch
@pytest.mark.parametrize("name", MUTANTS)
def test_defaults_and_its_mutants(name: str, tmp_path: Path) -> None:
    code, env, values, setting = MUTANTS[name]
    result = check("defaults", tmp_path, f"import torch\n{code}\n" if code else "", **env)
    assert broken(result) == values
    assert setting in result["message"]


ON_GPU = {
    "sound": ("", {}, []),
    "TF32 for products": ("torch.set_float32_matmul_precision('high')", {}, ["product_error"]),
    "another type": ("torch.set_default_dtype(torch.float64)", {}, ["dtype"]),
    "only plain attention": (
        "torch.backends.cuda.enable_flash_sdp(False)\ntorch.backends.cuda.enable_mem_efficient_sdp(False)\n"
        "getattr(torch.backends.cuda, 'enable_cudnn_sdp', bool)(False)",
        {},
        ["fused_attention"],
    ),
    "launches that wait": ("", {"CUDA_LAUNCH_BLOCKING": "1"}, ["launch_returned_first"]),
    "no cache of memory": ("", {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, ["cached"]),
}


@needs_gpus(1)
@pytest.mark.parametrize("name", ON_GPU)
def test_gpu_defaults_and_its_mutants(name: str, tmp_path: Path) -> None:
    code, env, values = ON_GPU[name]
    result = check("gpu-defaults", tmp_path, f"import torch\n{code}\n" if code else "", **env)
    assert broken(result) == values


@needs_gpus(1)
@pytest.mark.parametrize("id", ["memory", "checkpoint", "offload"])
def test_without_a_cache_of_memory_a_check_names_its_values(id: str, tmp_path: Path) -> None:
    """Then torch counts no memory, and a ratio of two peaks is that of two zeros."""
    result = check(id, tmp_path, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    assert "peak_ratio" in broken(result)
    assert "ZeroDivisionError" not in result["message"]
