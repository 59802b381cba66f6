"""autocast-matmul, bf16: autocast computes products in half precision, and they are correct."""

import pytest

from smoke_tests.closeness import relative_error

SIZE, DEPTH = 256, 512  # sums of 512 products up to 4: FP16 holds every integer up to 2048, BF16 up to 256


@pytest.mark.tier(1)
def test_autocast_matmul(measure):
    """FP16 out, the exact product of integer matrices, softmax and layer_norm in FP32, FP32 again outside."""
    import torch
    from torch.nn import functional

    with torch.autocast("cuda", dtype=torch.float16):
        measure("autocast_enabled", torch.is_autocast_enabled(), equals=True)
        product, exact = _integers(torch)
        measure("device", product.device.type, equals="cuda")
        measure("dtype", str(product.dtype), equals="torch.float16")
        measure("wrong_elements", int((product.double() != exact).sum()), equals=0)
        measure("relative_error", _random_error(torch), at_most=2e-3)
        measure("kept_of_2**-12", _kept(torch), equals=0.0)
        measure("softmax", str(functional.softmax(product, -1).dtype), equals="torch.float32")
        norm = functional.layer_norm(product, product.shape[-1:])
        measure("layer_norm", str(norm.dtype), equals="torch.float32")
    outside = torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
    measure("outside", str(outside.dtype), equals="torch.float32")


@pytest.mark.tier(1)
def test_bf16(measure):
    """BF16 out, and an error within its eight bits: three roundings by up to 2**-8 each."""
    import torch

    with torch.autocast("cuda", dtype=torch.bfloat16):
        product, _ = _integers(torch)
        measure("device", product.device.type, equals="cuda")
        measure("dtype", str(product.dtype), equals="torch.bfloat16")
        measure("relative_error", _random_error(torch), at_most=1e-2)
        measure("kept_of_2**-12", _kept(torch), equals=0.0)


def _integers(torch):
    """A product of FP32 integer matrices under autocast, and the exact one by FP64 on the CPU."""
    torch.manual_seed(0)
    left = torch.randint(0, 2, (SIZE, DEPTH)).double()
    right = torch.randint(-1, 5, (DEPTH, SIZE)).double()  # 384 on average
    return left.float().cuda() @ right.float().cuda(), (left @ right).cuda()


def _random_error(torch):
    """‖product - reference‖ / ‖reference‖ by Frobenius, the reference in FP64 from the same FP32 numbers."""
    torch.manual_seed(1)
    left, right = torch.randn(SIZE, DEPTH, device="cuda"), torch.randn(DEPTH, SIZE, device="cuda")
    return relative_error(left @ right, left.double() @ right.double())


def _kept(torch):
    """(1 + 2**-12) - 1 as a product: 0 if the factors were rounded to half precision, whatever came out."""
    left = torch.tensor([[1 + 2**-12, -1.0]], device="cuda")
    return float(left @ torch.ones(2, 1, device="cuda"))
