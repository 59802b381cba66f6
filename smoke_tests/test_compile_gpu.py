"""compile-gpu: torch.compile builds kernels for this GPU with Triton, and they are correct, backward too."""

import os
from pathlib import Path

import pytest

from smoke_tests.closeness import relative_error

BOUND = 1e-5  # FP32 sums of 256 products err by some 3e-7, TF32's ten bits by 3e-4


@pytest.mark.tier(1)
@pytest.mark.limit(300)
def test_compile_gpu(measure, monkeypatch, tmp_path):
    """Result and gradients agree with FP64, and Triton built a .cubin; a fallback to eager builds none."""
    # New folders, so that every kernel is compiled now; plain pytest sets none.
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    import torch

    from smoke_tests.torch_api import tensor_float

    tensor_float(False)
    torch.manual_seed(0)
    inputs = [torch.randn(*shape, device="cuda") for shape in ((128, 256), (256, 512), (512,))]
    exact = _trained(_layer, [tensor.double() for tensor in inputs])
    before = cubins()
    compiled = _trained(torch.compile(_layer, fullgraph=True), inputs)

    kernels = cubins() - before
    measure("kernels", sorted(Path(kernel).name for kernel in kernels))
    measure("new_cubins", len(kernels), at_least=1)
    for name, found in compiled.items():
        measure(name, relative_error(found, exact[name]), at_most=BOUND)


def cubins():
    """Every .cubin in Triton's cache, and in Inductor's, where newer releases keep Triton's."""
    folders = (os.environ["TRITON_CACHE_DIR"], os.environ["TORCHINDUCTOR_CACHE_DIR"])
    return {str(path) for folder in folders for path in Path(folder).rglob("*.cubin")}


def _layer(x, weight, bias):
    """A product, which stays cuBLAS's, between pointwise operations, which become kernels."""
    return ((x * 2).sin() @ weight + bias).relu() * 0.5


def _trained(layer, inputs):
    """Output and gradients of *layer*."""
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    output = layer(*inputs)
    output.square().sum().backward()
    x, weight, bias = inputs
    return {
        "output_error": output.detach(),
        "x_error": x.grad,
        "weight_error": weight.grad,
        "bias_error": bias.grad,
    }
