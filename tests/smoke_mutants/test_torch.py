"""Mutants of the checks that run torch: the environment or a function of torch is broken, never the check.

They need an interpreter with torch (a CPU build is enough): this one, or that of TORCHKILN_TORCH_PYTHON.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.smoke_mutants.mutant import PYTHON, broken, check, needs_torch
from tests.smoke_suites import CLAIMS, FACTS

pytestmark = needs_torch


def test_cpu_train_passes_in_a_sound_environment(tmp_path: Path) -> None:
    finding = check("cpu-train", tmp_path)
    assert (finding["outcome"], finding["message"]) == ("passed", "")


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
def test_cpu_train_fails_if_nothing_is_learned_or_loaded(
    mutant: str, names: list[str], tmp_path: Path
) -> None:
    finding = check("cpu-train", tmp_path, mutant)
    assert finding["outcome"] == "failed"
    assert broken(finding) == names


def test_compile_cpu_passes_in_a_sound_environment(tmp_path: Path) -> None:
    finding = check("compile-cpu", tmp_path)
    assert (finding["outcome"], finding["message"]) == ("passed", "")


def test_compile_cpu_fails_without_a_compiler(tmp_path: Path) -> None:
    unnamed = "import os\nfor name in ('CC', 'CXX'):\n    os.environ.pop(name, None)"
    finding = check("compile-cpu", tmp_path, unnamed, PATH=str(tmp_path))
    assert finding["outcome"] == "failed"
    assert "compiler" in finding["message"].lower()


def test_compile_cpu_fails_if_torch_falls_back_to_eager(tmp_path: Path) -> None:
    mutant = "import torch\ntorch.compile = lambda function, **options: function"
    finding = check("compile-cpu", tmp_path, mutant)
    assert finding["message"] == "kernel_libraries: 0 is not at least 1"


def test_a_cpu_build_of_torch_fails_archs_and_claims(tmp_path: Path) -> None:
    """A CPU build is the mutant; skipped if the interpreter's torch has CUDA."""
    code = "import torch, sys; sys.exit(torch.version.cuda is not None)"
    if subprocess.run([PYTHON, "-I", "-c", code], check=False).returncode:
        pytest.skip("this torch is built for CUDA: set TORCHKILN_TORCH_PYTHON to one that is not")
    (tmp_path / "archs").mkdir()
    assert (
        check("archs", tmp_path / "archs", facts=FACTS)["message"]
        == "archs: 'sm_80' is missing; 'sm_90' is missing"
    )
    lines = check("claims", tmp_path, facts=FACTS)["message"].splitlines()
    assert f"wheel_cuda: is None, expected {CLAIMS['wheel_cuda']!r}" in lines
    assert "cuda_promise: is False, expected True" in lines
    assert "cudnn: is None, expected '9.5.1'" in lines
    assert "nccl: is None, expected '2.26.2'" in lines
