"""Mutants of libraries, semi-structured and vision-audio; and the table that says what calls each library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smoke_tests.applicable import RULES
from smoke_tests.catalogue import catalogue
from smoke_tests.expected import expected
from smoke_tests.library_table import FILES, WHEELS, ByCheck, Called, NotCalled, of_file, of_nvidia, of_wheel
from tests.smoke_mutants.mutant import broken, check, environment, needs_gpus
from tests.smoke_mutants.pretended import skip_unless_it_applies
from tests.smoke_suites import SUITE

LOCKS = sorted((SUITE.parent / "images").glob("*/lock.json"))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.parent.name)
def test_each_locked_wheel_of_nvidia_is_in_the_table(lock: Path) -> None:
    """A new library in a lock fails here until it has a case or a reason."""
    wheels = [wheel["name"] for wheel in json.loads(lock.read_bytes()).get("wheels", ())]
    nvidia = of_nvidia(wheels)
    assert [name for name in nvidia if of_wheel(name) is None] == []
    facts = {"wheels": [{"name": name, "version": "1"} for name in wheels]}
    assert expected("nvidia_wheels", facts, {}) == nvidia


def test_the_rows_of_the_table_name_cases_and_checks_that_exist() -> None:
    rows = [*WHEELS.values(), *FILES.values()]
    cases = {row.case for row in rows if isinstance(row, Called)}
    locked = {"wheels": [{"name": "nvidia-curand", "version": "1"}]}
    assert cases == set(expected("library_cases", locked, {}))
    tests = {row for row in rows if isinstance(row, ByCheck)}
    assert {row.check for row in tests} <= {one.id for one in catalogue(SUITE)}
    assert {row.check for row in tests if row.check in RULES} == {row.check for row in tests if row.otherwise}
    assert all(row.reason for row in rows if isinstance(row, NotCalled))


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("libcublasLt.so.12", "products"),
        ("libcufft.so.11", "fourier"),
        ("libnvjpeg.e5f20359.so.12", "jpeg"),
        ("_C.cpython-311-x86_64-linux-gnu.so", "vision-audio"),
        ("libtorchaudio.abi3.so", "vision-audio"),
        ("libcusparseLt-f80c68d1.so.0", "semi-structured"),
        ("libcublasXt.so.12", None),
        ("libnew.so", None),
    ],
)
def test_a_file_is_known_by_its_name(name: str, row: str | None) -> None:
    assert (of_file(name) or (None,))[0] == row


@needs_gpus(1)
@pytest.mark.parametrize("id", ["libraries", "semi-structured", "vision-audio"])
def test_it_passes_in_a_sound_environment(id: str, tmp_path: Path) -> None:
    skip_unless_it_applies(id)
    result = check(id, tmp_path)
    assert (result["outcome"], result["message"]) == ("passed", "")


@needs_gpus(1)
def test_libraries_fails_with_a_new_library_in_the_lock(tmp_path: Path) -> None:
    facts = environment()
    facts = facts | {"wheels": [*facts["wheels"], {"name": "nvidia-cunew-cu13", "version": "1"}]}
    result = check("libraries", tmp_path, facts=facts)
    assert broken(result) == ["wheels_in_the_table"]
    assert "'nvidia-cunew-cu13' is missing" in result["message"]


def off(module: str, name: str, by: str = "found * 1.01") -> str:
    """A mutant in which a function's results on the GPU are wrong."""
    return (
        f"import torch, {module.split('.')[0]}\n"
        f"import {module} as module\n"
        f"real = module.{name}\n"
        "def off(*inputs, **options):\n"
        "    found = real(*inputs, **options)\n"
        f"    return {by} if found.is_cuda else found\n"
        f"module.{name} = off\n"
    )


NCCL_DOUBLES = """
import torch.distributed as dist
real = dist.all_reduce
def all_reduce(tensor, *operation, **options):
    real(tensor, *operation, **options)
    tensor.mul_(2)
dist.all_reduce = all_reduce
"""
CURAND_REPEATS = """
import ctypes
real = ctypes.CDLL
class Library:
    def __init__(self, *inputs, **options):
        self.real = real(*inputs, **options)
    def __getattr__(self, name):
        return (lambda *inputs: 0) if name == "curandGenerateUniform" else getattr(self.real, name)
ctypes.CDLL = lambda name=None, *inputs, **options: (
    Library(name, *inputs, **options) if "libcurand" in str(name) else real(name, *inputs, **options)
)
"""
NARROW = """
import torch
real = torch.Tensor.normal_
torch.Tensor.normal_ = lambda self, mean=0, std=1: real(self, mean, 0.95 * std)
"""
NO_SEED = "import torch\ntorch.manual_seed = lambda seed: torch.default_generator\n"
WRONG = ["wrong_results"]
# The mutant, the values that are out of bounds, a case in the message.
MUTANTS = {
    "cuBLAS": (off("torch", "bmm"), WRONG, "products: bmm"),
    "cuFFT": (off("torch.fft", "rfft"), WRONG, "fourier: rfft"),
    "cuSOLVER": (off("torch.linalg", "svdvals"), WRONG, "decompositions: svd"),
    "cuSPARSE": (off("torch.sparse", "mm"), WRONG, "sparse: coo"),
    "nvJPEG": (off("torchvision.io", "decode_jpeg", "found // 2"), WRONG, "jpeg: decode"),
    "NCCL": (NCCL_DOUBLES, WRONG, "collectives: all_reduce"),
    "cuRAND does nothing": (CURAND_REPEATS, ["wrong_results"], "curand"),
    "a normal distribution is too narrow": (NARROW, ["largest_distance"], ""),
    "seeds are ignored": (NO_SEED, ["not_repeated_by_a_seed"], ""),
    "an order that is not random": (
        "import torch\ntorch.randperm = lambda n, **options: torch.arange(n, **options)\n",
        ["permutation_faults"],
        "",
    ),
    "a library stops": (
        "import torch\ndef stop(*inputs, **options):\n    raise RuntimeError('cufftXtMakePlanMany failed')\n"
        "torch.fft.fft = stop\n",
        ["results", "wrong_results"],
        "fourier: stopped",
    ),
}


@needs_gpus(1)
@pytest.mark.parametrize("name", MUTANTS)
def test_libraries_and_its_mutants(name: str, tmp_path: Path) -> None:
    mutant, values, case = MUTANTS[name]
    result = check("libraries", tmp_path, mutant)
    assert broken(result) == values
    assert case in result["message"]


DENSE = """
import torch
real = torch._cslt_sparse_mm
torch._cslt_sparse_mm = lambda *inputs, **options: real(*inputs, **options) * 1.05
"""


@needs_gpus(1)
def test_semi_structured_fails_if_products_are_wrong(tmp_path: Path) -> None:
    skip_unless_it_applies("semi-structured")
    assert broken(check("semi-structured", tmp_path, DENSE)) == [
        "transposed_error",
        "linear_error",
        "float16_error",
        "bfloat16_error",
    ]


NO_KERNEL = """
import torch, torchvision
real = torchvision.ops.nms
def nms(boxes, scores, threshold):
    if boxes.is_cuda:
        raise NotImplementedError("Could not run 'torchvision::nms' with arguments from the 'CUDA' backend.")
    return real(boxes, scores, threshold)
torchvision.ops.nms = nms
"""
ALIGNED = """
import torchaudio.functional as module
real = module.forced_align
def aligned(emission, targets):
    path, scores = real(emission, targets)
    return (path.roll(1), scores) if path.is_cuda else (path, scores)
module.forced_align = aligned
"""
VISION = {
    "nms without a kernel": (NO_KERNEL, "Could not run 'torchvision::nms'"),
    "roi_align": (off("torchvision.ops", "roi_align"), "roi_align, output"),
    "roi_pool": (off("torchvision.ops", "roi_pool"), "roi_pool, output"),
    "deform_conv2d": (off("torchvision.ops", "deform_conv2d"), "deform_conv2d, output"),
    "rnnt_loss": (off("torchaudio.functional", "rnnt_loss"), "rnnt_loss, loss"),
    "forced_align": (ALIGNED, "forced_align, path"),
}


@needs_gpus(1)
@pytest.mark.parametrize("name", VISION)
def test_vision_audio_and_its_mutants(name: str, tmp_path: Path) -> None:
    mutant, part = VISION[name]
    result = check("vision-audio", tmp_path, mutant)
    assert broken(result) == ["wrong"]
    assert part in result["message"]
