"""fp8: the tensor cores multiply matrices of eight-bit numbers, with their scales."""

import pytest

from smoke_tests.closeness import relative_error

ROWS, DEPTH, COLUMNS = 128, 256, 64  # multiples of 16, as the kernel requires
LARGEST = {"e4m3fn": 448.0, "e5m2": 57344.0}

VALUES = {
    "fp8": {
        "device_e4m3fn": {"equals": "cuda"},
        "e4m3fn_dtype": {"equals": "torch.bfloat16"},
        "e4m3fn_wrong_integers": {"equals": 0},
        "e4m3fn_scales": {"type": ["number"]},
        # Against the product of the rounded numbers: rounding the result to bfloat16's eight bits gives
        # 1.7e-3.
        "e4m3fn_product_error": {"at_most": 5e-3},
        # Against the numbers before they were rounded to four bits: 3.8 % was measured.
        "e4m3fn_error": {"at_most": 0.06},
        "device_e5m2": {"equals": "cuda"},
        "e5m2_dtype": {"equals": "torch.bfloat16"},
        "e5m2_wrong_integers": {"equals": 0},
        "e5m2_scales": {"type": ["number"]},
        "e5m2_product_error": {"at_most": 5e-3},
        "e5m2_error": {"at_most": 0.10},  # three bits: 5.9 % was measured
    },
}


@pytest.mark.tier(1)
def test_fp8(measure):
    """Products of integers are exact, those of random matrices with scales far from 1 precise; e4m3 and
    e5m2."""
    import torch

    torch.manual_seed(0)
    for kind in ("e4m3fn", "e5m2"):
        _integers(torch, kind, measure)
        _random(torch, kind, measure)


def _integers(torch, kind, measure):
    """Sums of 256 products of -1, 0 and 1, doubled by the scales: bfloat16 represents all even numbers to
    512."""
    from smoke_tests.torch_api import scaled_mm

    left = torch.randint(-1, 2, (ROWS, DEPTH), device="cuda").double()
    right = torch.randint(-1, 2, (DEPTH, COLUMNS), device="cuda").double()
    product = scaled_mm(_eight(torch, left, kind), _by_columns(torch, right), *_scales(torch, 4.0, 0.5))
    measure(f"device_{kind}", product.device.type)
    measure(f"{kind}_dtype", str(product.dtype))
    measure(f"{kind}_wrong_integers", int((product.double() != 2 * (left @ right)).sum()))


def _random(torch, kind, measure):
    """Small numbers, as in gradients, times large numbers; a scale moves each into the range of its
    format."""
    from smoke_tests.torch_api import scaled_mm

    left = torch.randn(ROWS, DEPTH, device="cuda").double() * 1e-3
    right = torch.randn(DEPTH, COLUMNS, device="cuda").double() * 10
    by_left = float(left.abs().max()) / LARGEST[kind]
    by_right = float(right.abs().max()) / LARGEST["e4m3fn"]
    eight, eight_right = _eight(torch, left / by_left, kind), _by_columns(torch, right / by_right)
    product = scaled_mm(eight, eight_right, *_scales(torch, by_left, by_right))
    rounded = (eight.float().double() * by_left) @ (eight_right.float().double() * by_right)
    measure(f"{kind}_scales", [by_left, by_right])
    measure(f"{kind}_product_error", relative_error(product, rounded))
    measure(f"{kind}_error", relative_error(product, left @ right))


def _eight(torch, numbers, kind):
    """*numbers* in eight bits."""
    return numbers.float().to(getattr(torch, f"float8_{kind}"))


def _by_columns(torch, numbers):
    """*numbers* in e4m3, column-major, as the kernel requires for its right-hand side."""
    return _eight(torch, numbers.t().contiguous(), "e4m3fn").t()


def _scales(torch, *scales):
    """The scales of the eight-bit numbers, each a tensor on the GPU."""
    return [torch.tensor(scale, device="cuda") for scale in scales]
