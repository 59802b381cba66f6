"""Mutants of the checks that run torch: the environment or the call into torch is broken, never the check.

They need an interpreter with torch (its CPU build will do): this one, or what TORCHKILN_TORCH_PYTHON names.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.smoke_mutants.mutant import PYTHON, broken, check, needs_torch
from tests.smoke_suites import CLAIMS, FACTS

pytestmark = needs_torch


def test_cpu_train_passes_in_a_sound_environment(tmp_path: Path) -> None:
    told = check("cpu-train", tmp_path)
    assert (told["outcome"], told["message"]) == ("passed", "")


@pytest.mark.parametrize(
    ("mutant", "names"),
    [
        (
            "import torch\nreal = torch.optim.AdamW\n"
            "torch.optim.AdamW = lambda params, lr: real(params, lr=0.0)",
            ["loss_ratio", "least_moved_weight"],
        ),
        (
            "import torch\ntorch.optim.AdamW.step = lambda self, closure=None: None",
            ["loss_ratio", "least_moved_weight"],
        ),
        (
            "import torch.utils.data as data\nreal = data.DataLoader\n"
            "data.DataLoader = lambda rows, **options: real(rows, **(options | {'num_workers': 0}))",
            ["loader_workers", "loader_batches_shared"],
        ),
        (
            "import torch.utils.data as data\nreal = data.DataLoader\n"
            "data.DataLoader = lambda rows, **options: real(rows, **options, shuffle=True)",
            ["loader_exact"],
        ),
    ],
    ids=["lr=0", "step does nothing", "no workers", "rows in another order"],
)
def test_cpu_train_fails_where_nothing_is_learned_or_loaded(
    mutant: str, names: list[str], tmp_path: Path
) -> None:
    told = check("cpu-train", tmp_path, mutant)
    assert told["outcome"] == "failed"
    assert broken(told) == names


def test_compile_cpu_passes_in_a_sound_environment(tmp_path: Path) -> None:
    told = check("compile-cpu", tmp_path)
    assert (told["outcome"], told["message"]) == ("passed", "")


def test_compile_cpu_fails_without_a_compiler(tmp_path: Path) -> None:
    unnamed = "import os\nfor name in ('CC', 'CXX'):\n    os.environ.pop(name, None)"
    told = check("compile-cpu", tmp_path, unnamed, PATH=str(tmp_path))
    assert told["outcome"] == "failed"
    assert "compiler" in told["message"].lower()


def test_compile_cpu_fails_where_torch_falls_back_to_eager(tmp_path: Path) -> None:
    mutant = "import torch\ntorch.compile = lambda function, **options: function"
    told = check("compile-cpu", tmp_path, mutant)
    assert told["message"] == "kernel_libraries: 0 is not at least 1"


def test_a_cpu_build_of_torch_fails_archs_and_claims(tmp_path: Path) -> None:
    """Only where the interpreter's torch has no CUDA, which is itself the mutant."""
    code = "import torch, sys; sys.exit(torch.version.cuda is not None)"
    if subprocess.run([PYTHON, "-I", "-c", code], check=False).returncode:
        pytest.skip("this torch is built for CUDA: set TORCHKILN_TORCH_PYTHON to one that is not")
    (tmp_path / "archs").mkdir()
    assert (
        check("archs", tmp_path / "archs", facts=FACTS)["message"]
        == "archs: 'sm_80' is missing; 'sm_90' is missing"
    )
    told = check("claims", tmp_path, facts=FACTS)["message"].splitlines()
    assert f"wheel_cuda: is None, wanted {CLAIMS['wheel_cuda']!r}" in told
    assert "cuda_promise: is False, wanted True" in told
    assert "cudnn: is None, wanted '9.5.1'" in told
    assert "nccl: is None, wanted '2.26.2'" in told
