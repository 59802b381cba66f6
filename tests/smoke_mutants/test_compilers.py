"""Mutants of compile-gpu, nvrtc and extension: no compiler, another one, or a result that nobody compiled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.needs import needs_gcc
from tests.smoke_mutants.mutant import broken, check, needs_gpus, needs_torch, without_gpu
from tests.smoke_mutants.pretended import PRETEND, skip_unless_it_applies, without_library


@needs_gpus(1)
@pytest.mark.parametrize("id", ["compile-gpu", "nvrtc", "extension"])
def test_it_passes_in_a_sound_environment(id: str, tmp_path: Path) -> None:
    skip_unless_it_applies(id)
    told = check(id, tmp_path)
    assert (told["outcome"], told["message"]) == ("passed", "")


@needs_gpus(1)
def test_compile_gpu_fails_without_a_compiler(tmp_path: Path) -> None:
    skip_unless_it_applies("compile-gpu")
    told = check("compile-gpu", tmp_path, "import os\nos.environ.pop('CC', None)", PATH=str(tmp_path))
    assert told["outcome"] == "failed"
    assert "compiler" in told["message"].lower()


NOT_COMPILED = "import torch\ntorch.compile = lambda function, **options: function"
BY_EAGER = (
    "import torch\nreal = torch.compile\n"
    "torch.compile = lambda function, **options: real(function, backend='aot_eager', **options)"
)


@needs_gpus(1)
@pytest.mark.parametrize("mutant", [NOT_COMPILED, BY_EAGER], ids=["the function itself", "aot_eager"])
def test_compile_gpu_fails_where_nothing_is_compiled(mutant: str, tmp_path: Path) -> None:
    skip_unless_it_applies("compile-gpu")
    told = check("compile-gpu", tmp_path, mutant)
    assert told["message"] == "new_cubins: 0 is not at least 1"


@needs_torch
@without_gpu
def test_compile_gpu_on_the_cpu_is_right_and_makes_no_cubin(tmp_path: Path) -> None:
    told = check("compile-gpu", tmp_path, PRETEND + NOT_COMPILED)
    assert told["message"] == "new_cubins: 0 is not at least 1"


EAGER_SOURCE = (
    "import torch\n"
    "torch.cuda.jiterator._create_jit_fn = lambda source, **options: "
    "lambda x, y, factor: factor * x * x - y"
)
EAGER_GCD = "import torch\nreal = torch.gcd\ntorch.gcd = lambda x, y: real(x.cpu(), y.cpu())"
MISREAD = (
    "import torch.cuda.jiterator as jiterator\nreal = jiterator._create_jit_fn\n"
    "jiterator._create_jit_fn = lambda source, **options: real(source.replace('- y', '+ y'), **options)"
)


@needs_gpus(1)
@pytest.mark.parametrize(
    ("mutant", "names"),
    [
        (EAGER_SOURCE, ["source_compiled"]),
        (EAGER_GCD, ["gcd_compiled"]),
        (MISREAD, ["source_wrong"]),
    ],
    ids=["jiterator by eager", "gcd by the CPU", "another source"],
)
def test_nvrtc_fails_where(mutant: str, names: list[str], tmp_path: Path) -> None:
    told = check("nvrtc", tmp_path, mutant)
    assert told["outcome"] == "failed"
    assert broken(told) == names


@needs_gpus(1)
@needs_gcc
@pytest.mark.parametrize("part", ["libnvrtc.so", "libnvrtc-builtins"])
def test_nvrtc_fails_without_one_of_its_libraries(part: str, tmp_path: Path) -> None:
    told = check("nvrtc", tmp_path, **without_library(tmp_path, part))
    assert told["outcome"] == "failed"
    assert "nvrtc" in told["message"].lower()


@needs_torch
@without_gpu
def test_nvrtc_on_the_cpu_is_right_and_compiles_nothing(tmp_path: Path) -> None:
    told = check("nvrtc", tmp_path, PRETEND + EAGER_SOURCE)
    assert broken(told) == ["source_compiled", "gcd_compiled"]


def without_nvcc(home: Path) -> dict[str, str]:
    """The environment in which CUDA's home is *home*, and no nvcc is in PATH."""
    places = os.environ["PATH"].split(os.pathsep)
    kept = os.pathsep.join(place for place in places if not Path(place, "nvcc").exists())
    return {"PATH": kept, "CUDA_HOME": str(home), "CUDA_PATH": str(home)}


@needs_gpus(1)
def test_extension_fails_without_nvcc(tmp_path: Path) -> None:
    skip_unless_it_applies("extension")
    told = check("extension", tmp_path, **without_nvcc(tmp_path))
    assert told["outcome"] == "failed"
    assert "nvcc" in told["message"]


@needs_gpus(1)
def test_extension_fails_with_the_nvcc_of_another_cuda(tmp_path: Path) -> None:
    skip_unless_it_applies("extension")
    (tmp_path / "bin").mkdir()
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 1.0, V1.0.0'\n")
    nvcc.chmod(0o755)
    told = check("extension", tmp_path, **without_nvcc(tmp_path))
    assert told["outcome"] == "failed"
    assert "mismatches" in told["message"]
