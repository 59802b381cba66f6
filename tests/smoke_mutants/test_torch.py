"""Mutants of the checks that run torch: the environment or the call into torch is broken, never the check.

They need an interpreter with torch (its CPU build will do): this one, or what TORCHKILN_TORCH_PYTHON names.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.smoke_suites import CLAIMS, FACTS, SUITE

PYTHON = os.environ.get("TORCHKILN_TORCH_PYTHON") or (
    sys.executable if importlib.util.find_spec("torch") else ""
)
pytestmark = pytest.mark.skipif(
    not PYTHON, reason="no torch here: set TORCHKILN_TORCH_PYTHON to an interpreter that has it"
)


def check(name: str, tmp_path: Path, mutant: str = "", **env: str) -> dict[str, Any]:
    """The result of the check *name* in a process that ran *mutant* first, with *env* on top of ours."""
    facts, result = tmp_path / "facts.json", tmp_path / "result.json"
    facts.write_text(json.dumps(FACTS))
    node = f"test_{name}.py::test_{name}"
    arguments = [str(SUITE / "one.py"), str(SUITE), _pytest_folder(), node, str(facts), str(result)]
    program = f"import sys, runpy\nsys.argv = {arguments!r}\n{mutant}\n"
    program += "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    own = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [PYTHON, "-I", "-B", "-c", program],
        env=os.environ | own | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.exists(), done.stdout + done.stderr
    told: dict[str, Any] = json.loads(result.read_bytes())
    return told


def _pytest_folder() -> str:
    """Where this process has its pytest: for the other interpreter the last place to look."""
    return str(Path(pytest.__file__).parent.parent)


def test_cpu_train_passes_in_a_sound_environment(tmp_path: Path) -> None:
    told = check("cpu_train", tmp_path)
    assert (told["outcome"], told["message"]) == ("passed", "")


@pytest.mark.parametrize(
    ("mutant", "broken"),
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
    mutant: str, broken: list[str], tmp_path: Path
) -> None:
    told = check("cpu_train", tmp_path, mutant)
    assert told["outcome"] == "failed"
    assert [line.split(":")[0] for line in told["message"].splitlines()] == broken


def test_compile_cpu_passes_in_a_sound_environment(tmp_path: Path) -> None:
    told = check("compile_cpu", tmp_path)
    assert (told["outcome"], told["message"]) == ("passed", "")


def test_compile_cpu_fails_without_a_compiler(tmp_path: Path) -> None:
    told = check("compile_cpu", tmp_path, PATH=str(tmp_path))
    assert told["outcome"] == "failed"
    assert "compiler" in told["message"].lower()


def test_compile_cpu_fails_where_torch_falls_back_to_eager(tmp_path: Path) -> None:
    mutant = "import torch\ntorch.compile = lambda function, **options: function"
    told = check("compile_cpu", tmp_path, mutant)
    assert told["message"] == "kernel_libraries: 0 is not at least 1"


def test_a_cpu_build_of_torch_fails_archs_and_claims(tmp_path: Path) -> None:
    """Only where the interpreter's torch has no CUDA, which is itself the mutant."""
    code = "import torch, sys; sys.exit(torch.version.cuda is not None)"
    if subprocess.run([PYTHON, "-I", "-c", code], check=False).returncode:
        pytest.skip("this torch is built for CUDA")
    (tmp_path / "archs").mkdir()
    assert check("archs", tmp_path / "archs")["message"] == "archs: 'sm_80' is missing; 'sm_90' is missing"
    told = check("claims", tmp_path)["message"].splitlines()
    assert f"wheel_cuda: is None, wanted {CLAIMS['wheel_cuda']!r}" in told
    assert "cuda_promise: is False, wanted True" in told
    assert "cudnn: is None, wanted '9.5.1'" in told
    assert "nccl: is None, wanted '2.26.2'" in told
