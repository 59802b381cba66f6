"""autocast-matmul, bf16: autocast computes products in half precision, and they are correct."""

import copy
import math

import pytest

from smoke_tests.closeness import relative_error

# Sums of 512 products up to 4: FP16 represents every integer up to 2048, BF16 up to 256.
SIZE, DEPTH = 256, 512
# Bounds for sums of up to 8192 products. Rounding factors and result gives an error of 4e-4 with FP16's
# eleven bits and 3e-3 with BF16's eight, and up to three times that if parts of a sum are added in half
# precision. Noise of 5 % gives 5e-2.
PRODUCT_BOUNDS = {"torch.float16": 2e-3, "torch.bfloat16": 1.5e-2}

VALUES = {
    "autocast-matmul": {
        "autocast_enabled": {"equals": True},
        "device": {"equals": "cuda"},
        "dtype": {"equals": "torch.float16"},
        "wrong_elements": {"equals": 0},
        "relative_error": {"at_most": 2e-3},
        "unrounded_part": {"equals": 0.0},
        "softmax": {"equals": "torch.float32"},
        "layer_norm": {"equals": "torch.float32"},
        "outside": {"equals": "torch.float32"},
        "device_of_products": {"equals": ["cuda"]},
        "product_dtypes": {
            "equals": {
                "matmul": "torch.float16",
                "linear": "torch.float16",
                "bmm": "torch.float16",
                "baddbmm": "torch.float16",
                "einsum": "torch.float16",
                "attention": "torch.float16",
                "conv1d": "torch.float16",
                "conv_transpose1d": "torch.float16",
                "conv2d": "torch.float16",
                "conv_transpose2d": "torch.float16",
                "conv3d": "torch.float16",
                "conv_transpose3d": "torch.float16",
            }
        },
        "product_errors": {"type": {"*": ["number"]}},
        "imprecise_products": {"equals": []},
        "largest_product_error": {"at_most": 2e-3},  # PRODUCT_BOUNDS
        "change_by_step": {"at_least": 1e-2},
        "error_after_step": {"at_most": 1e-3},
    },
    "bf16": {
        "device": {"equals": "cuda"},
        "dtype": {"equals": "torch.bfloat16"},
        "relative_error": {"at_most": 1e-2},
        "unrounded_part": {"equals": 0.0},
        "device_of_products": {"equals": ["cuda"]},
        "product_dtypes": {
            "equals": {
                "matmul": "torch.bfloat16",
                "linear": "torch.bfloat16",
                "bmm": "torch.bfloat16",
                "baddbmm": "torch.bfloat16",
                "einsum": "torch.bfloat16",
                "attention": "torch.bfloat16",
                "conv1d": "torch.bfloat16",
                "conv_transpose1d": "torch.bfloat16",
                "conv2d": "torch.bfloat16",
                "conv_transpose2d": "torch.bfloat16",
                "conv3d": "torch.bfloat16",
                "conv_transpose3d": "torch.bfloat16",
            }
        },
        "product_errors": {"type": {"*": ["number"]}},
        "imprecise_products": {"equals": []},
        "largest_product_error": {"at_most": 1.5e-2},  # PRODUCT_BOUNDS
    },
}


@pytest.mark.tier(1)
def test_autocast_matmul(measure):
    """The product of integer matrices is FP16 and exact; softmax, layer_norm and code outside are FP32; each
    kind of product is precise for sums of up to 8192 terms; after a step, autocast uses the new weights."""
    import torch
    from torch.nn import functional

    with torch.autocast("cuda", dtype=torch.float16):
        measure("autocast_enabled", torch.is_autocast_enabled())
        product, exact = _integers(torch)
        measure("device", product.device.type)
        measure("dtype", str(product.dtype))
        measure("wrong_elements", int((product.double() != exact).sum()))
        measure("relative_error", _random_error(torch))
        measure("unrounded_part", _unrounded(torch))
        measure("softmax", str(functional.softmax(product, -1).dtype))
        norm = functional.layer_norm(product, product.shape[-1:])
        measure("layer_norm", str(norm.dtype))
    outside = torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
    measure("outside", str(outside.dtype))
    _products(measure, torch.float16)
    _weight_cache(measure, torch)


@pytest.mark.tier(1)
def test_bf16(measure):
    """The product is BF16, and its error is within three roundings by up to 2**-8 each."""
    import torch

    with torch.autocast("cuda", dtype=torch.bfloat16):
        product, _ = _integers(torch)
        measure("device", product.device.type)
        measure("dtype", str(product.dtype))
        measure("relative_error", _random_error(torch))
        measure("unrounded_part", _unrounded(torch))
    _products(measure, torch.bfloat16)


def _products(measure, half):
    """The dtype and the error of every product that autocast computes in half precision."""
    from smoke_tests.curves import figures
    from smoke_tests.products import PRODUCTS, computed

    bound = PRODUCT_BOUNDS[str(half)]
    results = computed(half)
    dtypes = {name: {result.dtype for result in results if result.name == name} for name in PRODUCTS}
    measure("device_of_products", sorted({result.device for result in results}))
    measure("product_dtypes", {name: "+".join(sorted(found)) for name, found in dtypes.items()})
    errors = {name: [figures(result.error) for result in results if result.name == name] for name in PRODUCTS}
    measure("product_errors", errors)
    # A NaN counts as imprecise, and as the largest error, because comparisons with NaN are false.
    imprecise = [result for result in results if not result.error <= bound]
    measure("imprecise_products", [f"{result.name} of {result.terms} terms" for result in imprecise])
    largest = max((result.error for result in results), key=lambda error: (math.isnan(error), error))
    measure("largest_product_error", largest)


def _weight_cache(measure, torch):
    """Autocast casts a weight once in a block. The next block must use the weights after the step, as a copy
    of the model does, whose weights are not in the cache."""
    from smoke_tests.training import Regression

    task = Regression()
    loss = torch.nn.functional.mse_loss

    def outputs(model):
        with torch.autocast("cuda", dtype=torch.float16):
            return model(task.inputs)

    before = outputs(task.model)
    loss(before.float(), task.targets).backward()
    task.optimizer.step()
    after, expected = outputs(task.model), outputs(copy.deepcopy(task.model))
    measure("change_by_step", relative_error(before, expected))
    # The same kernels on the same numbers; equal bits are not required, because a library may choose other
    # kernels.
    measure("error_after_step", relative_error(after, expected))


def _integers(torch):
    """A product of FP32 integer matrices under autocast, and the exact product, in FP64 on the CPU."""
    torch.manual_seed(0)
    left = torch.randint(0, 2, (SIZE, DEPTH)).double()
    right = torch.randint(-1, 5, (DEPTH, SIZE)).double()  # 384 on average
    return left.float().cuda() @ right.float().cuda(), (left @ right).cuda()


def _random_error(torch):
    """‖product - reference‖ / ‖reference‖ (Frobenius norm), with the reference in FP64 from the same FP32
    numbers."""
    torch.manual_seed(1)
    left, right = torch.randn(SIZE, DEPTH, device="cuda"), torch.randn(DEPTH, SIZE, device="cuda")
    return relative_error(left @ right, left.double() @ right.double())


def _unrounded(torch):
    """(1 + 2**-12) - 1 as a product: 0 if the factors were rounded, for any dtype of the result."""
    left = torch.tensor([[1 + 2**-12, -1.0]], device="cuda")
    return float(left @ torch.ones(2, 1, device="cuda"))
