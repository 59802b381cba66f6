"""Calls every CUDA library that torch uses, in the types and modes that select different kernels."""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

Calls = Iterator[tuple[str, Callable[[], Any]]]
HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32, torch.float64)
LAPACK = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random numbers on the GPU, the same for each process."""
    wide = dtype if dtype.is_complex or dtype == torch.float64 else torch.float32
    return torch.randn(*shape, device="cuda", dtype=wide).to(dtype)


def cublas() -> Calls:
    """Matrix products, matrix by vector, batches, triangular systems; with and without TF32."""
    for dtype, n in itertools.product((*FLOATS, torch.complex64, torch.complex128), (7, 64, 513, 2048)):
        yield f"mm {dtype} {n}", lambda: rand(n, n, dtype=dtype) @ rand(n, n, dtype=dtype)
        yield f"bmm {dtype} {n}", lambda: torch.bmm(rand(3, n, 65, dtype=dtype), rand(3, 65, n, dtype=dtype))
        yield f"mv {dtype} {n}", lambda: rand(n, n, dtype=dtype) @ rand(n, dtype=dtype)
        yield f"dot {dtype} {n}", lambda: torch.dot(rand(n, dtype=dtype), rand(n, dtype=dtype))
    for transposed in itertools.product((False, True), repeat=2):
        for dtype in FLOATS:
            yield (
                f"mm {dtype} {transposed}",
                lambda: _maybe(transposed[0], dtype) @ _maybe(transposed[1], dtype),
            )
    yield "mm tf32", lambda: _with_tf32(lambda: rand(1024, 1024) @ rand(1024, 1024))
    yield "int8", lambda: torch._int_mm(_int8(64, 128), _int8(128, 64))
    for dtype in LAPACK:
        yield (
            f"triangular {dtype}",
            lambda: torch.linalg.solve_triangular(
                torch.eye(96, device="cuda", dtype=dtype) + rand(96, 96, dtype=dtype).triu() / 96,
                rand(96, 8, dtype=dtype),
                upper=True,
            ),
        )


def _maybe(transposed: bool, dtype: torch.dtype) -> torch.Tensor:
    return rand(384, 384, dtype=dtype).t() if transposed else rand(384, 384, dtype=dtype)


def _with_tf32(call: Callable[[], Any]) -> Any:
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return call()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def _int8(*shape: int) -> torch.Tensor:
    return torch.randint(-8, 8, shape, device="cuda", dtype=torch.int8)


def cublaslt() -> Calls:
    """Linear layers with bias and activation, and FP8."""
    for dtype, k in itertools.product(HALVES, (64, 1024, 8192)):
        yield (
            f"linear {dtype} {k}",
            lambda: F.linear(rand(256, k, dtype=dtype), rand(512, k, dtype=dtype), rand(512, dtype=dtype)),
        )
        for gelu in (False, True):
            yield (
                f"activation {dtype} {k} {gelu}",
                lambda: torch._addmm_activation(
                    rand(512, dtype=dtype),
                    rand(256, k, dtype=dtype),
                    rand(k, 512, dtype=dtype),
                    use_gelu=gelu,
                ),
            )
    one = torch.ones((), device="cuda")
    for left, right in (
        (torch.float8_e4m3fn, torch.float8_e4m3fn),
        (torch.float8_e5m2, torch.float8_e4m3fn),
        (torch.float8_e4m3fn, torch.float8_e5m2),
    ):
        yield (
            f"fp8 {left} {right}",
            lambda: torch._scaled_mm(
                rand(128, 256).to(left), rand(64, 256).to(right).t(), one, one, out_dtype=torch.bfloat16
            ),
        )


def cudnn() -> Calls:
    """Convolutions in all directions with all engines, recurrent layers, attention, and others."""
    for dtype, benchmark, dims in itertools.product(FLOATS, (False, True), (1, 2, 3)):
        for kind in ("", "transpose"):
            for groups, size in ((1, 3), (4, 3), (1, 1), (1, 5)):
                name = f"conv{kind}{dims}d {dtype} groups {groups} size {size} benchmark {benchmark}"
                yield name, lambda: _convolved(dtype, dims, kind, groups, size, benchmark)
    for dtype in HALVES:
        yield f"channels_last {dtype}", lambda: _convolved(dtype, 2, "", 1, 3, True, torch.channels_last)
    for dtype, cell in itertools.product(FLOATS, ("RNN", "LSTM", "GRU")):
        yield f"{cell} {dtype}", lambda: _recurrent(dtype, cell)
    for dtype in HALVES:
        yield f"attention {dtype}", lambda: _attention(dtype)
    yield (
        "batch norm",
        lambda: F.batch_norm(rand(8, 16, 32, 32), None, None, rand(16), rand(16), training=True),
    )
    yield (
        "ctc",
        lambda: F.ctc_loss(
            rand(50, 2, 20).log_softmax(2),
            torch.arange(1, 11, dtype=torch.int32).cuda(),
            torch.tensor([50, 50], dtype=torch.int32),
            torch.tensor([5, 5], dtype=torch.int32),
        ),
    )


def _convolved(
    dtype: torch.dtype,
    dims: int,
    kind: str,
    groups: int,
    size: int,
    benchmark: bool,
    layout: torch.memory_format = torch.contiguous_format,
) -> Any:
    function = getattr(F, f"conv_{kind}{dims}d" if kind else f"conv{dims}d")
    x = rand(2, 16, *(12,) * dims, dtype=dtype).to(memory_format=layout).requires_grad_()
    weight = rand(16, 16 // groups, *(size,) * dims, dtype=dtype).to(memory_format=layout).requires_grad_()
    # A limit of 0 tries all engines. These flags cannot be set after the import of the operator database.
    with torch.backends.cudnn.flags(enabled=True, benchmark=benchmark, benchmark_limit=0):
        y = function(x, weight, groups=groups)
        return [y, *torch.autograd.grad(y, [x, weight], torch.ones_like(y))]


def _recurrent(dtype: torch.dtype, cell: str) -> Any:
    torch.manual_seed(1)
    layer = getattr(torch.nn, cell)(32, 48, num_layers=2, bidirectional=True).to("cuda", dtype)
    x = rand(20, 4, 32, dtype=dtype).requires_grad_()
    y = layer(x)[0]
    return [y, *torch.autograd.grad(y, [x, *layer.parameters()], torch.ones_like(y))]


def _attention(dtype: torch.dtype) -> Any:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (rand(2, 4, 256, 64, dtype=dtype).requires_grad_() for _ in range(3))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return [y, *torch.autograd.grad(y, [q, k, v], torch.ones_like(y))]


def cusparse() -> Calls:
    """Products of sparse matrices in CSR, COO and BSR, sampled products, triangular systems."""
    for dtype in (*LAPACK, *HALVES):
        yield f"csr dense {dtype}", lambda: _sparse(dtype).to_sparse_csr() @ rand(128, 32, dtype=dtype)
        yield (
            f"coo dense {dtype}",
            lambda: torch.sparse.mm(_sparse(dtype).to_sparse(), rand(128, 32, dtype=dtype)),
        )
        yield (
            f"bsr dense {dtype}",
            lambda: _sparse(dtype).to_sparse_bsr((16, 16)) @ rand(128, 32, dtype=dtype),
        )
        yield f"vector {dtype}", lambda: _sparse(dtype).to_sparse_csr() @ rand(128, dtype=dtype)
    for dtype in LAPACK:
        yield f"csr csr {dtype}", lambda: _sparse(dtype).to_sparse_csr() @ _sparse(dtype).to_sparse_csr()
        yield (
            f"sampled {dtype}",
            lambda: torch.sparse.sampled_addmm(
                _sparse(dtype).to_sparse_csr(), rand(128, 16, dtype=dtype), rand(16, 128, dtype=dtype)
            ),
        )
        yield (
            f"triangular {dtype}",
            lambda: (
                torch.triangular_solve(
                    rand(128, 4, dtype=dtype),
                    (
                        _sparse(dtype).triu() / 128 + torch.eye(128, device="cuda", dtype=dtype)
                    ).to_sparse_csr(),
                ).solution
            ),
        )


def _sparse(dtype: torch.dtype) -> torch.Tensor:
    mask = torch.rand(128, 128, device="cuda") < 0.1
    return rand(128, 128, dtype=dtype) * mask


def cusparselt() -> Calls:
    """Products with 2:4 sparsity, by cuSPARSELt and by CUTLASS."""
    from torch.sparse import SparseSemiStructuredTensor, to_sparse_semi_structured

    def product(dtype: torch.dtype, cutlass: bool) -> Any:
        SparseSemiStructuredTensor._FORCE_CUTLASS = cutlass
        pattern = torch.tensor([0, 0, 1, 1], device="cuda").repeat(128, 64)
        if dtype == torch.int8:
            return to_sparse_semi_structured(pattern.to(dtype)) @ _int8(128, 256).t()
        return to_sparse_semi_structured(rand(128, 256, dtype=dtype) * pattern) @ rand(256, 128, dtype=dtype)

    for dtype, cutlass in itertools.product((*HALVES, torch.int8), (False, True)):
        yield f"{dtype} {'cutlass' if cutlass else 'cusparselt'}", lambda: product(dtype, cutlass)


def cusolver() -> Calls:
    """Decompositions by cuSOLVER and by MAGMA; absolute values, because the signs are not determined."""
    for dtype, library, n in itertools.product(LAPACK, ("cusolver", "magma"), (16, 200)):
        for name, call in {
            "svd": lambda a: torch.linalg.svdvals(a),
            "eigh": lambda a: torch.linalg.eigvalsh(a + a.mH),
            "qr": lambda a: torch.linalg.qr(a).R.abs(),
            "cholesky": lambda a: torch.linalg.cholesky(a @ a.mH + torch.eye(n, device="cuda", dtype=dtype)),
            "lu": lambda a: torch.linalg.lu_factor(a).LU,
            "solve": lambda a: torch.linalg.solve(a, a[:, :3]),
            "batch": lambda a: torch.linalg.cholesky_ex(torch.stack([a @ a.mH + a.shape[0]] * 5)).L,
        }.items():
            yield f"{name} {dtype} {library} {n}", lambda: _solved(call, dtype, library, n)


def _solved(call: Callable[[torch.Tensor], Any], dtype: torch.dtype, library: str, n: int) -> Any:
    torch.backends.cuda.preferred_linalg_library(library)
    return call(rand(n, n, dtype=dtype))


def cufft() -> Calls:
    """Transforms of one to three dimensions; powers of two, other and prime lengths."""
    for length, dtype in itertools.product((64, 60, 101, 4096, 10007), (torch.float32, torch.float64)):
        yield f"rfft {length} {dtype}", lambda: torch.fft.rfft(rand(3, length, dtype=dtype))
        yield (
            f"irfft {length} {dtype}",
            lambda: torch.fft.irfft(torch.fft.rfft(rand(3, length, dtype=dtype)), n=length),
        )
        yield f"fft {length} {dtype}", lambda: torch.fft.fft(rand(3, length, dtype=dtype.to_complex()))
    yield "half", lambda: torch.fft.fft(rand(4, 256).half())
    for dims in (2, 3):
        yield f"fftn {dims}", lambda: torch.fft.fftn(rand(2, *(24,) * dims), dim=tuple(range(1, dims + 1)))


def curand() -> Calls:
    """Random generators of libcurand, which torch links but does not call, and of torch."""
    for kind in (100, 101, 121, 141, 142, 161, 200, 201, 202, 203):  # CURAND_RNG_*
        yield f"generator {kind}", lambda: _generated(kind)
    for name in ("uniform_", "normal_", "exponential_", "cauchy_", "log_normal_", "geometric_"):
        arguments = (0.3,) if name == "geometric_" else ()
        yield f"torch {name}", lambda: getattr(torch.empty(10_000, device="cuda"), name)(*arguments)


def _generated(kind: int) -> torch.Tensor:
    maps = Path("/proc/self/maps").read_text().splitlines()
    library = ctypes.CDLL(next(line.split()[-1] for line in maps if "libcurand" in line))
    generator, double = ctypes.c_void_p(), kind in (202, 203)
    numbers = torch.zeros(4096, device="cuda", dtype=torch.float64 if double else torch.float32)
    statuses = [library.curandCreateGenerator(ctypes.byref(generator), kind)]
    name = "curandGenerateUniformDouble" if double else "curandGenerateUniform"
    statuses.append(
        getattr(library, name)(generator, ctypes.c_void_p(numbers.data_ptr()), ctypes.c_size_t(4096))
    )
    torch.cuda.synchronize()
    statuses.append(library.curandDestroyGenerator(generator))
    if any(statuses):
        raise RuntimeError(f"curand: status {statuses}")
    return numbers


def nccl() -> Calls:
    """Collectives of a group of one rank."""
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29555")
    dist.init_process_group("nccl", rank=0, world_size=1)

    def reduced(dtype: torch.dtype, operation: Any) -> torch.Tensor:
        x = (rand(100_000) * 4).to(dtype)
        dist.all_reduce(x, operation)
        return x

    def gathered(dtype: torch.dtype) -> torch.Tensor:
        found = [torch.zeros(1000, device="cuda", dtype=dtype)]
        dist.all_gather(found, (rand(1000) * 4).to(dtype))
        return found[0]

    operations = (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MAX, dist.ReduceOp.AVG)
    for dtype in (*FLOATS, torch.int32, torch.int64, torch.uint8):
        for operation in operations:
            yield f"all_reduce {dtype} {operation}", lambda: reduced(dtype, operation)
        yield f"all_gather {dtype}", lambda: gathered(dtype)
    dist.destroy_process_group()


def nvjpeg() -> Calls:
    """A JPEG that torchvision encodes on the CPU and decodes on the GPU."""
    from torchvision.io import decode_jpeg, encode_jpeg

    picture = (torch.arange(3 * 64 * 96) % 251).to(torch.uint8).reshape(3, 64, 96)
    yield "decode", lambda: decode_jpeg(encode_jpeg(picture), device="cuda")
    yield "encode", lambda: encode_jpeg(picture.cuda())


LIBRARIES: dict[str, Callable[[], Calls]] = {
    function.__name__: function
    for function in (cublas, cublaslt, cudnn, cusparse, cusparselt, cusolver, cufft, curand, nccl, nvjpeg)
}
