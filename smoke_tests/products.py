"""The products that autocast computes in half precision, with sums of 64 to 8192 terms.

Imports torch; import it inside a check.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch.nn import functional

from smoke_tests.closeness import relative_error

# For long sums, libraries use other kernels: they divide a sum, and by default add its parts in half
# precision (torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction).
TERMS = (64, 512, 1024, 8192)
_SEED = 2
_Shapes = list[tuple[int, ...]]


class Product(NamedTuple):
    """A function, and the shapes of its arguments for sums of K terms. Each has 1024 results."""

    compute: Callable[..., torch.Tensor]
    shapes: Callable[[int], _Shapes]


class Computed(NamedTuple):
    """The result of a product under autocast, and its relative error."""

    name: str
    terms: int
    dtype: str
    device: str
    error: float


def _convolution(sizes: tuple[int, ...], batch: int, k: int) -> _Shapes:
    """Image and filters: a filter has two taps in each direction, so K is the channels times the taps."""
    taps: int = 2 ** len(sizes)
    return [(batch, k // taps, *sizes), (32, k // taps, *(2 for _ in sizes))]


def _transposed(sizes: tuple[int, ...], batch: int, k: int) -> _Shapes:
    image, (out, channels, *taps) = _convolution(sizes, batch, k)
    return [image, (channels, out, *taps)]


def _convolutions() -> Iterator[tuple[str, Product]]:
    """Convolutions with one to three dimensions, plain and transposed. Padding 1 removes the border of
    transposed ones, where sums have fewer terms."""
    for dimensions, sizes, batch in ((1, (9,), 4), (2, (5, 5), 2), (3, (3, 3, 3), 4)):
        plain = getattr(functional, f"conv{dimensions}d")
        transposed = functools.partial(getattr(functional, f"conv_transpose{dimensions}d"), padding=1)
        yield f"conv{dimensions}d", Product(plain, functools.partial(_convolution, sizes, batch))
        yield (
            f"conv_transpose{dimensions}d",
            Product(transposed, functools.partial(_transposed, sizes, batch)),
        )


PRODUCTS: Mapping[str, Product] = {
    "matmul": Product(torch.matmul, lambda k: [(32, k), (k, 32)]),
    "linear": Product(functional.linear, lambda k: [(32, k), (32, k), (32,)]),
    "bmm": Product(torch.bmm, lambda k: [(4, 16, k), (4, k, 16)]),
    "baddbmm": Product(torch.baddbmm, lambda k: [(4, 16, 16), (4, 16, k), (4, k, 16)]),
    "einsum": Product(functools.partial(torch.einsum, "bik,bjk->bij"), lambda k: [(4, 16, k), (4, 16, k)]),
    "attention": Product(  # K keys
        functional.scaled_dot_product_attention, lambda k: [(1, 2, 8, 64), (1, 2, k, 64), (1, 2, k, 64)]
    ),
    **dict(_convolutions()),
}


def computed(dtype: torch.dtype) -> list[Computed]:
    """Every product for each number of terms, under autocast to *dtype*."""
    torch.manual_seed(_SEED)
    return [_computed(name, product, terms, dtype) for name, product in PRODUCTS.items() for terms in TERMS]


def _computed(name: str, product: Product, terms: int, dtype: torch.dtype) -> Computed:
    """Compute *product*, and a reference in FP64 on the CPU from the same FP32 numbers. The sum of 8192
    products of normally distributed numbers is about 90, far below FP16's maximum of 65504."""
    inputs = [torch.randn(shape) for shape in product.shapes(terms)]
    exact = product.compute(*(tensor.double() for tensor in inputs))
    with torch.autocast("cuda", dtype=dtype):
        found = product.compute(*(tensor.cuda() for tensor in inputs))
    error = relative_error(found.cpu(), exact)
    return Computed(name, terms, str(found.dtype), found.device.type, error)
