"""compile-gpu: torch.compile builds fused kernels for this GPU with Triton, and its calls run them."""

import os
from pathlib import Path

import pytest

from smoke_tests.closeness import relative_error

# One operation of each pointwise part: before the product, after it, and in the backward pass. In every
# release, Inductor names a kernel by its operations.
FUSED = ("cos", "relu", "sin")
# The operators of `_layer` and of its gradient that are not products. A compiled call runs them in its
# kernels, and calls none of them.
POINTWISE = {f"aten::{name}" for name in ("add", "cos", "mul", "relu", "sin", "sum", "threshold_backward")}

VALUES = {
    "compile-gpu": {
        "kernels": {"type": ["string"]},
        "new_cubins": {"at_least": 1},
        "kernels_without_new_cubin": {"equals": []},
        "operations_without_kernel": {"equals": []},
        "eager_operators": {"equals": []},
        "eager_kernels": {"equals": []},
        "launches_of_eager": {"at_least": 8},
        "launches_of_compiled": {"type": "integer"},
        "launches_saved": {"at_least": 3},
        # Sums of 256 products have an error of about 3e-7 in FP32, and of 3e-4 with TF32's ten bits.
        "output_error": {"at_most": 1e-5},
        "x_error": {"at_most": 1e-5},
        "weight_error": {"at_most": 1e-5},
        "bias_error": {"at_most": 1e-5},
    },
}


@pytest.mark.tier(1)
@pytest.mark.limit(300)
def test_compile_gpu(measure, monkeypatch, tmp_path):
    """Result and gradients agree with FP64. The compiled call launches new kernels for its operations, none
    of the kernels of eager mode, and fewer of them.

    Names alone prove little, because a kernel beside an eager call can have any name. But an eager call must
    launch torch's own kernels to get the result, and the trace would show them.
    """
    # New folders, so that every kernel is compiled now; plain pytest sets none.
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    import torch

    from smoke_tests.launches import launched
    from smoke_tests.torch_api import name_kernels_by_operation, tensor_float

    tensor_float(False)
    name_kernels_by_operation()
    torch.manual_seed(0)
    shapes = ((128, 256), (256, 512), (512,), (128, 512))
    *inputs, gradient = (torch.randn(*shape, device="cuda") for shape in shapes)
    exact = _trained(torch, _layer, [tensor.double() for tensor in inputs], gradient.double())
    before = cubins()
    compiled = torch.compile(_layer, fullgraph=True)
    # This call compiles, and tries several configurations of each kernel.
    found = _trained(torch, compiled, inputs, gradient)
    new = {Path(path).stem for path in cubins() - before}

    eager = launched(lambda: _trained(torch, _layer, inputs, gradient), tmp_path)
    call = launched(lambda: _trained(torch, compiled, inputs, gradient), tmp_path)
    measure("kernels", call.triton)
    measure("new_cubins", len(new))
    # Triton before 3.0 appends the types of the arguments to the name.
    without = {name for name in call.triton if not name.startswith(tuple(new))}
    measure("kernels_without_new_cubin", sorted(without))
    measure("operations_without_kernel", _lacking(call.triton))
    measure("eager_operators", sorted(POINTWISE & call.operators))
    measure("eager_kernels", sorted({name[:120] for name in call.aten}))
    measure("launches_of_eager", len(eager.aten))
    measure("launches_of_compiled", len(call.triton) + len(call.aten))
    measure("launches_saved", len(eager.aten) - len(call.triton) - len(call.aten))
    for name, value in found.items():
        measure(name, relative_error(value, exact[name]))


def cubins():
    """Every .cubin in Triton's cache, and in Inductor's, where newer releases keep Triton's."""
    folders = (os.environ["TRITON_CACHE_DIR"], os.environ["TORCHINDUCTOR_CACHE_DIR"])
    return {str(path) for folder in folders for path in Path(folder).rglob("*.cubin")}


def _lacking(kernels):
    """The operations that are in no kernel's name."""
    named = {part for kernel in kernels for part in kernel.split("_")}
    return [operation for operation in FUSED if operation not in named]


def _layer(x, weight, bias):
    """A product, which cuBLAS computes, between pointwise operations, which Inductor compiles into
    kernels."""
    return ((x * 2).sin() @ weight + bias).relu() * 0.5


def _trained(torch, layer, inputs, gradient):
    """Output and gradients of *layer*, without backward(), which launches additional copies."""
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    output = layer(*inputs)
    gradients = torch.autograd.grad(output, inputs, gradient)
    names = ("output_error", "x_error", "weight_error", "bias_error")
    return dict(zip(names, (output.detach(), *gradients), strict=True))
