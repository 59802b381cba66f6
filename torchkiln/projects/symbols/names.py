"""Identifies the owner of a symbol or library by its name, and demangles qualified names. Pure."""

from __future__ import annotations

import re

ABI_TAG = "B5cxx11"  # of functions that return a std::string of C++11

# The prefixes of CUDA's C functions, longer ones first; the name of the library if it is not lib + prefix.
# fmt: off
_PREFIXES = (
    "cublasLt", "cublasXt", "cublas", "cuda", "cudnn", "cufft", "cuFile", "cupti", "curand", "cusolver",
    "cusparseLt", "cusparse", "nccl", "nvJitLink", "__nvJitLink", "nvrtc",
)
# fmt: on
_NAMES = {"cublasXt": "cublas", "cuda": "cudart", "cuFile": "cufile", "__nvJitLink": "nvJitLink"}
_CUDA_LIBRARIES = {prefix: f"lib{_NAMES.get(prefix, prefix)}" for prefix in _PREFIXES}
_CUDA = re.compile(f"({'|'.join(_PREFIXES)})(?=[A-Z_])")

# A name in one of torch's namespaces: also a virtual table, type information, a guard variable.
_NESTED = re.compile(r"_Z(?P<special>T[VTIS]|GV|GR|T[HW])?N[rVK]*[RO]?")
_TORCH = re.compile(rf"{_NESTED.pattern}(?:3c10|2at|5torch|6caffe2)(?=[\dA-Z])|THP[A-Z]|aoti_torch_")
_TORCH_LIBRARY = re.compile(r"lib(torch|c10|caffe2)(_[a-z_]+)?\.so")
_LENGTH = re.compile(r"[1-9]\d{0,4}")
_SPECIALS = {"TV": "vtable for ", "TT": "VTT for ", "TI": "typeinfo for ", "TS": "typeinfo name for "}

_STEM = re.compile(r"([^/]+?)\.so(\.[\d.]+)?")
# A library that needs one of these is for other accelerators than NVIDIA GPUs, or (musl) for another C
# library.
_FOREIGN = re.compile(
    r"lib(torch|c10)_(hip|xpu|npu|musa|mlu)\.so|lib(amdhip64|hsa-runtime64|sycl|rccl|ascendcl|musart|cnrt)\b"
    r"|lib(hip|roc)[a-z]+\.so|libc\.musl-"
)
_C_LIBRARY = re.compile(
    r"(libc|libm|libdl|librt|libpthread|libutil|libgcc_s|libstdc\+\+|libgomp|ld-linux-x86-64)\.so\.\d+"
)


def of_torch(symbol: str) -> bool:
    """Whether torch's libraries have the symbol, by its C++ namespace or prefix."""
    return _TORCH.match(symbol) is not None


def cuda_library(symbol: str) -> str:
    """The library of CUDA, without version, that has the symbol by its prefix; "" if none."""
    found = _CUDA.match(symbol)
    return _CUDA_LIBRARIES[found[1]] if found else ""


def is_torch_library(name: str) -> bool:
    """Whether *name* is that of a library of torch, of any release."""
    return _TORCH_LIBRARY.fullmatch(name) is not None


def is_cuda_library(name: str) -> bool:
    """Whether *name* is that of a library of CUDA that torch brings, of any version."""
    return stem_of(name) in _CUDA_LIBRARIES.values()


def is_foreign(name: str) -> bool:
    """Whether only code for other accelerators or another C library needs the library *name*."""
    return _FOREIGN.match(name) is not None


def is_c_library(name: str) -> bool:
    """Whether *name* is a library of the C or C++ compiler: only its versions are checked."""
    return _C_LIBRARY.fullmatch(name) is not None


def stem_of(name: str) -> str:
    """The name of a library without its version: libcudart.so.12 is libcudart."""
    found = _STEM.fullmatch(name)
    return found[1] if found else name


def qualified(symbol: str) -> str:
    """A mangled name without parameters and ABI tags; "" if it has no qualified name.

    Symbols that begin with the result, apart from ABI tags, are the same function with other parameters.
    """
    names, end = _components(symbol)
    ends = symbol.startswith(("E", "C", "D"), end)  # the name, or with a constructor or destructor
    return symbol[: end + 1].replace(ABI_TAG, "") if len(names) > 1 and ends else ""


def readable(symbol: str) -> str:
    """`c10::detail::torchCheckFail` for a mangled name, without parameters; other symbols are unchanged."""
    names, end = _components(symbol)
    special = _NESTED.match(symbol)
    if not names or not special:
        return symbol
    last = {"C": (names[-1],), "D": (f"~{names[-1]}",)}.get(symbol[end : end + 1], ())
    return _SPECIALS.get(special["special"] or "", "") + "::".join((*names, *last))


def _components(symbol: str) -> tuple[list[str], int]:
    """The names that make up a qualified name, and where it ends."""
    start = _NESTED.match(symbol)
    if not start:
        return [], 0
    names, at = [], start.end()
    while length := _LENGTH.match(symbol, at):
        begin = length.end()
        at = begin + int(length[0])
        names.append(symbol[begin:at])
        at += len(ABI_TAG) if symbol.startswith(ABI_TAG, at) else 0
    return names, min(at, len(symbol))
