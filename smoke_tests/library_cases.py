"""Calls of every CUDA library that torch uses, with the same results in FP64. Imports torch.

Each case yields names with the result on the GPU and the exact one, on the CPU.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

Pairs = Iterator[tuple[str, torch.Tensor, torch.Tensor]]
LAPACK = (torch.float32, torch.float64, torch.complex64, torch.complex128)
HALVES = (torch.float16, torch.bfloat16)
# ‖found - exact‖ / ‖exact‖ by the type of the result: its rounding, for sums of a few thousand terms.
BOUNDS = {
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
    torch.float32: 2e-5,
    torch.complex64: 2e-5,
    torch.float64: 1e-12,
    torch.complex128: 1e-12,
    torch.complex32: 5e-3,
    torch.uint8: 1e-2,  # a decoded picture: the last bits depend on the order of sums
}
# Decompositions and solutions multiply the error by the condition of the matrix.
_CONDITION = 100


def _drawn(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Random numbers of *dtype* on the CPU; those of half types are rounded first, to be the same in FP64."""
    wide = dtype if dtype.is_complex or dtype == torch.float64 else torch.float32
    return torch.randn(shape, dtype=wide).to(dtype)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def _pair(
    name: str, call: Callable[..., torch.Tensor], *inputs: torch.Tensor
) -> tuple[str, torch.Tensor, torch.Tensor]:
    return name, call(*(item.cuda() for item in inputs)).cpu(), call(*map(_wide, inputs))


def products() -> Pairs:
    """cuBLAS and cuBLASLt: matrix products of all types, with vectors, in batches, and triangular systems."""
    for dtype, n in itertools.product((*HALVES, *LAPACK), (7, 64, 513)):
        yield _pair(f"mm {dtype} {n}", torch.mm, _drawn(dtype, n, n), _drawn(dtype, n, n))
        yield _pair(
            f"mm transposed {dtype} {n}",
            lambda a, b: a.t() @ b.t(),
            _drawn(dtype, n, 48),
            _drawn(dtype, 96, n),
        )
        yield _pair(f"bmm {dtype} {n}", torch.bmm, _drawn(dtype, 3, n, 65), _drawn(dtype, 3, 65, n))
        yield _pair(f"mv {dtype} {n}", torch.mv, _drawn(dtype, n, n), _drawn(dtype, n))
        yield _pair(f"dot {dtype} {n}", torch.dot, _drawn(dtype, n), _drawn(dtype, n))
    for dtype in HALVES:
        parts = (_drawn(dtype, 64, 256), _drawn(dtype, 128, 256), _drawn(dtype, 128))
        yield _pair(f"linear {dtype}", functional.linear, *parts)
    for dtype in LAPACK:
        triangle = torch.eye(96, dtype=dtype) + _drawn(dtype, 96, 96).triu() / 96
        solve = functools.partial(torch.linalg.solve_triangular, upper=True)
        yield _pair(f"triangular {dtype}", solve, triangle, _drawn(dtype, 96, 8))


def fourier() -> Pairs:
    """cuFFT: lengths with small and large prime factors, real and complex, of one to three dimensions."""
    kinds = ((torch.float32, torch.complex64), (torch.float64, torch.complex128))
    for (real, both), n in itertools.product(kinds, (64, 60, 101, 4096, 10007)):
        yield _pair(f"rfft {real} {n}", torch.fft.rfft, _drawn(real, 3, n))
        yield _pair(f"irfft {real} {n}", lambda a, n=n: torch.fft.irfft(a, n=n), _spectrum(both, n))
        yield _pair(f"fft {both} {n}", torch.fft.fft, _drawn(both, 3, n))
        yield _pair(f"ifft {both} {n}", torch.fft.ifft, _drawn(both, 3, n))
    for (_, both), dims in itertools.product(kinds, (2, 3)):
        axes = tuple(range(1, dims + 1))
        yield _pair(
            f"fftn {both} {dims}",
            lambda a, axes=axes: torch.fft.fftn(a, dim=axes),
            _drawn(both, 2, *(24,) * dims),
        )
    half = _drawn(torch.float16, 4, 256)
    yield (
        "fft half",
        torch.fft.fft(half.cuda()).to(torch.complex64).cpu().to(torch.complex32),
        torch.fft.fft(half.double()),
    )


def _spectrum(dtype: torch.dtype, n: int) -> torch.Tensor:
    """The transform of real numbers of length *n*: its first value is real, and the last if n is even."""
    real = torch.float64 if dtype == torch.complex128 else torch.float32
    return torch.fft.rfft(_drawn(real, 3, n).double()).to(dtype)


def decompositions() -> Pairs:
    """cuSOLVER and MAGMA: values that are unique, and products of the factors that are not."""
    for dtype, n in itertools.product(LAPACK, (16, 96)):
        general, sides = _drawn(dtype, n, n), _drawn(dtype, n, 3)
        positive = general @ general.mH / n + torch.eye(n, dtype=dtype)
        for name, call, inputs in (
            ("svd", torch.linalg.svdvals, (general,)),
            ("svd of a rectangle", torch.linalg.svdvals, (general[:, : n // 2],)),
            ("svd factors", _svd_product, (general,)),
            ("eigh", torch.linalg.eigvalsh, (positive,)),
            ("eigh factors", _eigh_product, (positive,)),
            ("eig", lambda a: torch.linalg.eigvals(a).abs().sort().values, (general,)),
            ("qr", lambda a: torch.linalg.qr(a).R.abs(), (general,)),
            ("qr factors", lambda a: torch.matmul(*torch.linalg.qr(a)), (general,)),
            ("cholesky", torch.linalg.cholesky, (positive,)),
            (
                "cholesky of a batch",
                lambda a: torch.linalg.cholesky(torch.stack([a, 2 * a, 3 * a])),
                (positive,),
            ),
            (
                "solve with cholesky",
                lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(a)),
                (positive, sides),
            ),
            ("lu", _lu_product, (general,)),
            ("solve", torch.linalg.solve, (positive, sides)),
            (
                "solve a batch",
                lambda a, b: torch.linalg.solve(torch.stack([a, 2 * a]), torch.stack([b, b])),
                (positive, sides),
            ),
            ("inv", torch.linalg.inv, (positive,)),
            ("slogdet", lambda a: torch.linalg.slogdet(a)[1], (positive,)),
            (
                "lstsq",
                lambda a, b: torch.linalg.lstsq(a[:, : a.shape[0] // 2], b).solution,
                (positive, sides),
            ),
        ):
            yield _pair(f"{name} {dtype} {n}", call, *inputs)


def _svd_product(matrix: torch.Tensor) -> torch.Tensor:
    left, values, right = torch.linalg.svd(matrix)
    return left @ (values.to(matrix.dtype).unsqueeze(1) * right)


def _eigh_product(matrix: torch.Tensor) -> torch.Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ (values.to(matrix.dtype).unsqueeze(1) * vectors.mH)


def _lu_product(matrix: torch.Tensor) -> torch.Tensor:
    left, lower, upper = torch.linalg.lu(matrix)
    return left @ lower @ upper


def sparse() -> Pairs:
    """cuSPARSE: products of sparse matrices in four layouts, sampled products and triangular systems."""
    for dtype in LAPACK:
        matrix = _drawn(dtype, 128, 128) * (torch.rand(128, 128) < 0.1)
        dense, vector = _drawn(dtype, 128, 32), _drawn(dtype, 128)
        left, right = _drawn(dtype, 128, 16), _drawn(dtype, 16, 128)
        exact, triangle = _wide(matrix), matrix.triu() / 128 + torch.eye(128, dtype=dtype)
        there, mask = matrix.cuda(), exact != 0
        csr = there.to_sparse_csr()
        yield f"csr {dtype}", (csr @ dense.cuda()).cpu(), exact @ _wide(dense)
        yield f"coo {dtype}", torch.sparse.mm(there.to_sparse(), dense.cuda()).cpu(), exact @ _wide(dense)
        if dtype.is_complex:  # torch computes products of real blocks by Triton, not by cuSPARSE
            yield f"bsr {dtype}", (there.to_sparse_bsr((16, 16)) @ dense.cuda()).cpu(), exact @ _wide(dense)
        yield f"vector {dtype}", (csr @ vector.cuda()).cpu(), exact @ _wide(vector)
        yield f"csr by csr {dtype}", (csr @ csr).to_dense().cpu(), exact @ exact
        sampled = torch.sparse.sampled_addmm(csr, left.cuda(), right.cuda()).to_dense().cpu()
        yield f"sampled {dtype}", sampled, mask * (exact + _wide(left) @ _wide(right))
        # By name, because torch.triangular_solve, which takes sparse matrices, is deprecated.
        solved = torch.ops.aten.triangular_solve(dense.cuda(), triangle.cuda().to_sparse_csr())[0].cpu()
        yield (
            f"triangular {dtype}",
            solved,
            torch.linalg.solve_triangular(_wide(triangle), _wide(dense), upper=True),
        )


def curand() -> Pairs:
    """cuRAND, which torch links but does not call: the same numbers as its generators on the CPU."""
    library = ctypes.CDLL(next(path for path in _mapped() if os.path.basename(path).startswith("libcurand")))
    for kind, number in {"xorwow": 101, "mrg32k3a": 121, "philox": 161, "sobol": 201}.items():
        sides = []
        for create, place in (("curandCreateGenerator", "cuda"), ("curandCreateGeneratorHost", "cpu")):
            numbers, generator = torch.zeros(4096, device=place), ctypes.c_void_p()
            address, size = ctypes.c_void_p(numbers.data_ptr()), ctypes.c_size_t(4096)
            statuses = [getattr(library, create)(ctypes.byref(generator), number)]
            statuses.append(library.curandGenerateUniform(generator, address, size))
            torch.cuda.synchronize()
            statuses.append(library.curandDestroyGenerator(generator))
            if any(statuses):
                raise RuntimeError(f"{create} of {kind}: status {statuses}")
            sides.append(numbers.cpu())
        yield kind, sides[0], sides[1].double()


def _mapped() -> list[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split(maxsplit=5)[5] for line in lines if line.count("/")]


def collectives() -> Pairs:
    """NCCL with one rank; several ranks are for tier 2."""
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(f"{folder}/store", 1)
        dist.init_process_group("nccl", store=store, rank=0, world_size=1)
        for dtype in (torch.float16, torch.float32, torch.float64):
            numbers = _drawn(dtype, 1000)
            for name in ("SUM", "AVG", "MAX"):
                there = numbers.cuda()
                dist.all_reduce(there, getattr(dist.ReduceOp, name))
                yield f"all_reduce {name} {dtype}", there.cpu(), numbers.double()
            gathered, scattered = torch.zeros_like(numbers).cuda(), torch.zeros_like(numbers).cuda()
            dist.all_gather([gathered], numbers.cuda())
            yield f"all_gather {dtype}", gathered.cpu(), numbers.double()
            dist.reduce_scatter(scattered, [numbers.cuda()])
            yield f"reduce_scatter {dtype}", scattered.cpu(), numbers.double()
        dist.destroy_process_group()


def jpeg() -> Pairs:
    """nvJPEG: a smooth picture, decoded on the GPU and on the CPU."""
    from torchvision.io import decode_jpeg, encode_jpeg

    down, across = torch.arange(64).view(-1, 1), torch.arange(96)
    picture = torch.stack([2 * down + across, 255 - 2 * down - across // 2, 100 + across - down]).to(
        torch.uint8
    )
    coded = encode_jpeg(picture, quality=95)
    yield "decode", decode_jpeg(coded, device="cuda").cpu(), decode_jpeg(coded).double()


def profiler() -> Pairs:
    """CUPTI: the profiler sees each launch of a kernel."""
    from smoke_tests.launches import launched

    there = torch.zeros(1000, device="cuda")

    def call() -> None:
        for _ in range(5):
            there.sin_()

    with tempfile.TemporaryDirectory() as folder:
        kernels = launched(call, Path(folder)).kernels
    yield "launches", torch.tensor([float(len(kernels))]).double(), torch.tensor([5.0]).double()


CASES: Mapping[str, Callable[[], Pairs]] = {
    case.__name__: case
    for case in (products, fourier, decompositions, sparse, curand, collectives, jpeg, profiler)
}


def bound(case: str, found: torch.Tensor) -> float:
    """The largest error of a result of *case*."""
    return BOUNDS[found.dtype] * (_CONDITION if case == "decompositions" else 1)


def pairs(case: str) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """All results of *case*, which draws the same numbers each time."""
    torch.manual_seed(0)
    return list(CASES[case]())


def described(error: BaseException) -> Any:
    """An error of a library, in one line."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
