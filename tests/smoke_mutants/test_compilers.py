"""Mutants of compile-gpu, nvrtc and extension: no compiler, another compiler, or a result of eager mode."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.needs import needs_gcc
from tests.smoke_mutants.mutant import broken, check, needs_gpus, needs_torch, torch_prints, without_gpu
from tests.smoke_mutants.pretended import PRETEND, skip_unless_it_applies, without_library


@needs_gpus(1)
@pytest.mark.parametrize("id", ["compile-gpu", "nvrtc", "extension"])
def test_it_passes_in_a_sound_environment(id: str, tmp_path: Path) -> None:
    skip_unless_it_applies(id)
    result = check(id, tmp_path)
    assert (result["outcome"], result["message"]) == ("passed", "")


@needs_gpus(1)
def test_compile_gpu_fails_without_a_compiler(tmp_path: Path) -> None:
    skip_unless_it_applies("compile-gpu")
    result = check("compile-gpu", tmp_path, "import os\nos.environ.pop('CC', None)", PATH=str(tmp_path))
    assert result["outcome"] == "failed"
    assert "compiler" in result["message"].lower()


DUMMY = """
import torch
import triton
import triton.language as tl


@triton.jit
def NAME(pointer, count, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(pointer + at, tl.load(pointer + at, mask=at < count) + 1, mask=at < count)


held = torch.zeros(64, device="cuda")


def run():
    NAME[(1,)](held, 64, SIZE=64)
"""
# torch.compile compiles and runs another kernel, but runs the function in eager mode.
BESIDE = """
import sys, torch
sys.path.append({folder!r})

def compile(function, **options):
    def call(*inputs):
        import dummy
        dummy.run()
        return function(*inputs)
    return call

torch.compile = compile
"""
# The compiled function runs forward and backward, but the result is that of eager mode.
DISCARDED = """
import torch
real = torch.compile

def compile(function, **options):
    compiled = real(function, **options)
    def call(*inputs):
        with torch.enable_grad():
            copies = [tensor.detach().requires_grad_() for tensor in inputs]
            output = compiled(*copies)
            torch.autograd.grad(output, copies, torch.empty_like(output))
        return function(*inputs)
    return call

torch.compile = compile
"""
EAGER_RAN = ["eager_operators", "eager_kernels", "launches_saved"]
NOT_COMPILED = "import torch\ntorch.compile = lambda function, **options: function"
BY_EAGER = (
    "import torch\nreal = torch.compile\n"
    "torch.compile = lambda function, **options: real(function, backend='aot_eager', **options)"
)


@needs_gpus(1)
@pytest.mark.parametrize("mutant", [NOT_COMPILED, BY_EAGER], ids=["the function itself", "aot_eager"])
def test_compile_gpu_fails_if_nothing_is_compiled(mutant: str, tmp_path: Path) -> None:
    skip_unless_it_applies("compile-gpu")
    result = check("compile-gpu", tmp_path, mutant)
    assert broken(result) == ["new_cubins", "operations_without_kernel", *EAGER_RAN]


@needs_gpus(1)
@pytest.mark.parametrize(
    ("kernel", "names"),
    [
        ("dummy", ["operations_without_kernel", *EAGER_RAN]),
        ("triton_poi_fused_add_cos_mul_relu_sin_0", EAGER_RAN),
    ],
    ids=["a kernel", "a kernel with a name like Inductor's"],
)
def test_compile_gpu_fails_if_eager_runs_as_well(kernel: str, names: list[str], tmp_path: Path) -> None:
    skip_unless_it_applies("compile-gpu")
    (tmp_path / "dummy.py").write_text(DUMMY.replace("NAME", kernel))
    result = check("compile-gpu", tmp_path, BESIDE.format(folder=str(tmp_path)))
    assert broken(result) == names


@needs_gpus(1)
def test_compile_gpu_fails_if_the_compiled_result_is_discarded(tmp_path: Path) -> None:
    """Both the compiled kernels and the kernels of eager mode are launched."""
    skip_unless_it_applies("compile-gpu")
    assert broken(check("compile-gpu", tmp_path, DISCARDED)) == EAGER_RAN


@needs_torch
@without_gpu
def test_compile_gpu_on_the_cpu_computes_correctly_and_launches_no_kernel(tmp_path: Path) -> None:
    result = check("compile-gpu", tmp_path, PRETEND + NOT_COMPILED)
    assert broken(result) == [
        "new_cubins",
        "operations_without_kernel",
        "eager_operators",
        "launches_of_eager",
        "launches_saved",
    ]


# A trace in the format of torch 2.7: operators of the CPU, launches, and kernels of the GPU.
TRACE = """
[{"ph": "M", "name": "process_name", "ts": 0},
 {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 2.5},
 {"ph": "X", "cat": "kernel", "name": "sm80_xmma_gemm_f32f32", "ts": 4.25},
 {"ph": "X", "cat": "kernel", "name": "triton_poi_fused_mul_sin_0", "ts": 3.5},
 {"ph": "X", "cat": "gpu_user_annotation", "name": "triton_poi_fused_mul_sin_0", "ts": 3.5},
 {"ph": "X", "cat": "kernel", "name": "void at::native::vectorized_elementwise_kernel<4>", "ts": 5},
 {"ph": "X", "cat": "kernel", "name": "_ZN2at6native13reduce_kernelILi512E", "ts": 6},
 {"ph": "X", "cat": "kernel", "name": "void at::native::direct_copy_kernel_cuda", "ts": 7},
 {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1},
 {"ph": "X", "cat": "cpu_op", "name": "triton_poi_fused_mul_sin_0", "ts": 1},
 {"ph": "X", "cat": "user_annotation", "name": "aten::sin", "ts": 1}]
"""


@needs_torch
def test_a_trace_is_read_as_launches_and_operators() -> None:
    """Only kernels on the GPU count as launches, because a program can give annotations any name."""
    code = f"""
from smoke_tests.launches import parse
seen = parse(json.loads({TRACE!r}))
print(json.dumps([len(seen.kernels), seen.triton, seen.aten, sorted(seen.operators)]))
"""
    assert torch_prints(code) == [
        5,
        ["triton_poi_fused_mul_sin_0"],
        ["void at::native::vectorized_elementwise_kernel<4>", "_ZN2at6native13reduce_kernelILi512E"],
        ["aten::mm"],
    ]


@needs_torch
@without_gpu
def test_a_compiled_call_calls_no_pointwise_operator(tmp_path: Path) -> None:
    """With this torch's compiler for the CPU: the part of the check that needs no GPU."""
    code = f"""
import torch
from smoke_tests.launches import launched
from smoke_tests.test_compile_gpu import POINTWISE, _layer, _trained
torch.cuda.synchronize = lambda: None
*inputs, gradient = (torch.randn(*shape) for shape in ((8, 16), (16, 32), (32,), (8, 32)))
compiled = torch.compile(_layer, fullgraph=True)
_trained(torch, compiled, inputs, gradient)
ones, torch.ones = torch.ones, lambda *shape, device: ones(*shape)
seen = [launched(lambda: _trained(torch, layer, inputs, gradient), pathlib.Path({str(tmp_path)!r}))
    for layer in (_layer, compiled)]
print()
print(json.dumps([sorted(POINTWISE & one.operators) for one in seen] + [sorted(POINTWISE)]))
"""
    eager, compiled, pointwise = torch_prints(code)
    assert (eager, compiled) == (pointwise, [])


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
def test_nvrtc_fails_with_a_mutant(mutant: str, names: list[str], tmp_path: Path) -> None:
    result = check("nvrtc", tmp_path, mutant)
    assert result["outcome"] == "failed"
    assert broken(result) == names


@needs_gpus(1)
@needs_gcc
@pytest.mark.parametrize("part", ["libnvrtc.so", "libnvrtc-builtins"])
def test_nvrtc_fails_without_one_of_its_libraries(part: str, tmp_path: Path) -> None:
    result = check("nvrtc", tmp_path, **without_library(tmp_path, part))
    assert result["outcome"] == "failed"
    assert "nvrtc" in result["message"].lower()


@needs_torch
@without_gpu
def test_nvrtc_on_the_cpu_computes_correctly_and_compiles_nothing(tmp_path: Path) -> None:
    result = check("nvrtc", tmp_path, PRETEND + EAGER_SOURCE)
    assert broken(result) == ["source_compiled", "gcd_compiled"]


def without_nvcc(home: Path) -> dict[str, str]:
    """The environment in which CUDA's home is *home*, and no nvcc is in PATH."""
    places = os.environ["PATH"].split(os.pathsep)
    path = os.pathsep.join(place for place in places if not Path(place, "nvcc").exists())
    return {"PATH": path, "CUDA_HOME": str(home), "CUDA_PATH": str(home)}


@needs_gpus(1)
def test_extension_fails_without_nvcc(tmp_path: Path) -> None:
    skip_unless_it_applies("extension")
    result = check("extension", tmp_path, **without_nvcc(tmp_path))
    assert result["outcome"] == "failed"
    assert "nvcc" in result["message"]


@needs_gpus(1)
def test_extension_fails_with_the_nvcc_of_another_cuda(tmp_path: Path) -> None:
    skip_unless_it_applies("extension")
    (tmp_path / "bin").mkdir()
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 1.0, V1.0.0'\n")
    nvcc.chmod(0o755)
    result = check("extension", tmp_path, **without_nvcc(tmp_path))
    assert result["outcome"] == "failed"
    assert "mismatches" in result["message"]
