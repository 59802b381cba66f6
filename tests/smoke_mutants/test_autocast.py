"""Mutants of autocast-matmul and bf16: products that stay in FP32, are imprecise or use old weights."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.smoke_mutants.pretended import anywhere, broken_by, faults_by, skip_unless_it_applies

NO_AUTOCAST = """
import torch
class Off(torch.autocast):
    def __init__(self, device, **options):
        super().__init__(device, **(options | {"enabled": False}))
torch.autocast = Off
"""
BFLOAT = """
import torch
class BFloat(torch.autocast):
    def __init__(self, device, **options):
        super().__init__(device, **(options | {"dtype": torch.bfloat16}))
torch.autocast = BFloat
"""
# The product is computed in FP32, and only its result is rounded to half precision.
ROUNDED_LATE = """
import torch
real = torch.Tensor.__matmul__
def product(left, right):
    if left.dtype != torch.float32 or not torch.is_autocast_enabled():
        return real(left, right)
    with torch.autocast("cuda", enabled=False):
        return real(left, right).half()
torch.Tensor.__matmul__ = product
"""
HALF_SOFTMAX = """
import torch
real = torch.nn.functional.softmax
def softmax(*arguments, **options):
    with torch.autocast("cuda", enabled=False):
        return real(*arguments, **options)
torch.nn.functional.softmax = softmax
"""
NEVER_ENDS = "import torch\ntorch.autocast.__exit__ = lambda self, *error: None\n"
CACHE_STAYS = "import torch\ntorch.clear_autocast_cache = lambda: None\n"

# A function that autocast runs in FP32.
STAYS_IN_FLOAT = """
import torch
real = {module}.{name}
def stays(*arguments, **options):
    with torch.autocast("cuda", enabled=False):
        return real(*arguments, **options)
{module}.{name} = stays
"""
CONVOLUTIONS = [f"conv{kind}{dimensions}d" for dimensions in (1, 2, 3) for kind in ("", "_transpose")]
FUNCTIONS = {
    "matmul": "torch",
    "linear": "torch.nn.functional",
    "bmm": "torch",
    "baddbmm": "torch",
    "einsum": "torch",
    "scaled_dot_product_attention": "torch.nn.functional",
    **dict.fromkeys(CONVOLUTIONS, "torch.nn.functional"),
}

# Half-precision kernels whose results are wrong by 5 % if a sum has more than a number of terms.
NOISE = """
import torch
from torch.utils._python_dispatch import TorchDispatchMode
class Noise(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {{}}))
        if func in {kernels} and found.dtype in (torch.float16, torch.bfloat16) and {terms} > {least}:
            found = found * (1 + 0.05 * torch.randn_like(found))
        return found
aten = torch.ops.aten
Noise().__enter__()
"""
MATRICES = "(aten.mm.default, aten.addmm.default)"
MATRIX_NOISE = NOISE.format(kernels=MATRICES, terms="args[-1].shape[0]", least=512)
BATCH_NOISE = NOISE.format(kernels="(aten.bmm.default,)", terms="args[-1].shape[1]", least=0)
LONG_BATCH_NOISE = NOISE.format(
    kernels="(aten.bmm.default, aten.baddbmm.default)", terms="args[-1].shape[1]", least=4096
)
CONVOLUTION_NOISE = NOISE.format(  # 32 channels of output
    kernels="(aten.convolution.default,)", terms="args[1].numel() // 32", least=4096
)

IMPRECISE = ["imprecise_products", "largest_product_error"]
MUTANTS = {
    "autocast off": (NO_AUTOCAST, ["autocast_enabled", "dtype", "unrounded_part", "product_dtypes"]),
    "to bf16": (BFLOAT, ["dtype", "wrong_elements", "relative_error", "product_dtypes", *IMPRECISE]),
    "rounded late": (ROUNDED_LATE, ["unrounded_part"]),
    "softmax in half precision": (HALF_SOFTMAX, ["softmax"]),
    "autocast that never ends": (NEVER_ENDS, ["outside", "error_after_step"]),
    "a cache that is never cleared": (CACHE_STAYS, ["error_after_step"]),
}
NOISES = {
    "in long sums of matrices": (MATRIX_NOISE, {"matmul": (1024, 8192), "linear": (1024, 8192)}),
    "in batches": (BATCH_NOISE, {"bmm": (64, 512, 1024, 8192), "einsum": (64, 512, 1024, 8192)}),
    "in long sums of batches": (LONG_BATCH_NOISE, dict.fromkeys(("bmm", "baddbmm", "einsum"), (8192,))),
    "in long convolutions": (CONVOLUTION_NOISE, dict.fromkeys(CONVOLUTIONS, (8192,))),
}


@anywhere
@pytest.mark.parametrize(("mutant", "names"), [("", []), *MUTANTS.values()], ids=["sound", *MUTANTS])
def test_autocast_matmul_and_its_mutants(
    mutant: str, names: list[str], pretend: bool, tmp_path: Path
) -> None:
    assert broken_by(mutant, "autocast-matmul", tmp_path, pretend=pretend) == names


@anywhere
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_product_that_stays_in_float(name: str, pretend: bool, tmp_path: Path) -> None:
    mutant = STAYS_IN_FLOAT.format(module=FUNCTIONS[name], name=name)
    product = "attention" if "attention" in name else name
    (fault,) = faults_by(mutant, "autocast-matmul", tmp_path, pretend=pretend)
    assert fault.startswith(f"product_dtypes: {product} is 'torch.float32'")
    assert ";" not in fault  # no other product


@anywhere
@pytest.mark.parametrize(("mutant", "products"), NOISES.values(), ids=NOISES)
@pytest.mark.parametrize("id", ["autocast-matmul", "bf16"])
def test_noise_of_five_percent(
    id: str, mutant: str, products: dict[str, tuple[int, ...]], pretend: bool, tmp_path: Path
) -> None:
    skip_unless_it_applies(id)
    faults = faults_by(mutant, id, tmp_path, pretend=pretend)
    assert [fault.split(":")[0] for fault in faults] == IMPRECISE
    cases = [f"{name} of {terms} terms" for name, imprecise in products.items() for terms in imprecise]
    assert re.findall("'(.*?)'", faults[0]) == cases


@anywhere
@pytest.mark.parametrize(
    ("mutant", "names"),
    [("", []), (NO_AUTOCAST, ["dtype", "unrounded_part", "product_dtypes"])],
    ids=["sound", "autocast off"],
)
def test_bf16_and_its_mutant(mutant: str, names: list[str], pretend: bool, tmp_path: Path) -> None:
    skip_unless_it_applies("bf16")
    assert broken_by(mutant, "bf16", tmp_path, pretend=pretend) == names
