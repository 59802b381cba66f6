"""Identifies the owner of a symbol or library by its name, and how a C++ symbol was compiled. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

ABI_TAG = "B5cxx11"  # of functions that return a std::string of C++11
StringAbi = Literal["", "old", "new"]

#: Prefix of C functions -> the library of CUDA, without version, that has them.
CUDA_PREFIXES: Mapping[str, str] = {
    "cublasLt": "libcublasLt",
    "cublasXt": "libcublas",
    "cublas": "libcublas",
    "cuda": "libcudart",
    "cudnn": "libcudnn",
    "cufft": "libcufft",
    "cuFile": "libcufile",
    "cupti": "libcupti",
    "curand": "libcurand",
    "cusolver": "libcusolver",
    "cusparseLt": "libcusparseLt",
    "cusparse": "libcusparse",
    "nccl": "libnccl",
    "nvJitLink": "libnvJitLink",
    "__nvJitLink": "libnvJitLink",
    "nvrtc": "libnvrtc",
}
_CUDA = re.compile(f"({'|'.join(CUDA_PREFIXES)})(?=[A-Z_])")  # longer prefixes come first
_CUDA_LIBRARIES = frozenset(CUDA_PREFIXES.values())

# A name in one of torch's namespaces: also a virtual table, type information, a guard variable.
_SPECIAL = r"_Z(?P<special>T[VTIS]|GV|GR|T[HW])?"
_TORCH = re.compile(rf"{_SPECIAL}N[rVK]*[RO]?(?:3c10|2at|5torch|6caffe2)(?=[\dA-Z])")
_TORCH_C = re.compile(r"THP[A-Z]|aoti_torch_")
_TORCH_LIBRARY = re.compile(r"lib(torch|c10|caffe2)(_[a-z_]+)?\.so")
_NESTED = re.compile(rf"{_SPECIAL}N[rVK]*[RO]?")
_ENDS = ("E", "C", "D")  # of the name, or a constructor or destructor
_LENGTH = re.compile(r"[1-9]\d{0,4}")
_SPECIALS = {"TV": "vtable for ", "TT": "VTT for ", "TI": "typeinfo for ", "TS": "typeinfo name for "}

_PYTHON = re.compile(r"_?Py[A-Z_]")
_STEM = re.compile(r"(?P<stem>[^/]+?)\.so(?:\.(?P<version>[\d.]+))?")
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
    return bool(_TORCH.match(symbol) or _TORCH_C.match(symbol))


def of_python(symbol: str) -> bool:
    """Whether it is a symbol of CPython's C API."""
    return _PYTHON.match(symbol) is not None


def cuda_library(symbol: str) -> str:
    """The library of CUDA, without version, that has the symbol by its prefix; "" if none."""
    found = _CUDA.match(symbol)
    return CUDA_PREFIXES[found[1]] if found else ""


def is_torch_library(name: str) -> bool:
    """Whether *name* is that of a library of torch, of any release."""
    return _TORCH_LIBRARY.fullmatch(name) is not None


def is_cuda_library(name: str) -> bool:
    """Whether *name* is that of a library of CUDA that torch brings, of any version."""
    return stem_of(name) in _CUDA_LIBRARIES


def is_foreign(name: str) -> bool:
    """Whether only code for other accelerators or another C library needs the library *name*."""
    return _FOREIGN.match(name) is not None


def is_c_library(name: str) -> bool:
    """Whether *name* is a library of the C or C++ compiler: only its versions are checked."""
    return _C_LIBRARY.fullmatch(name) is not None


def stem_of(name: str) -> str:
    """The name of a library without its version: libcudart.so.12 is libcudart."""
    found = _STEM.fullmatch(name)
    return found["stem"] if found else name


def version_of(name: str) -> str:
    """The version in the name of a library: that of libcudart.so.12 is 12; "" if there is none."""
    found = _STEM.fullmatch(name)
    return (found["version"] or "") if found else ""


def qualified(symbol: str) -> str:
    """A mangled name without parameters and ABI tags; "" if it has no qualified name.

    Symbols that begin with the result, apart from ABI tags, are the same function with other parameters.
    """
    names, end = _components(symbol)
    found = symbol[: end + 1] if len(names) > 1 and symbol[end : end + 1] in _ENDS else ""
    return found.replace(ABI_TAG, "")


def readable(symbol: str) -> str:
    """`c10::detail::torchCheckFail` for a mangled name, without parameters; other symbols are unchanged."""
    names, end = _components(symbol)
    if not names:
        return symbol
    special = _NESTED.match(symbol)
    prefix = _SPECIALS.get(special["special"] or "", "") if special else ""
    last = {"C": names[-1], "D": f"~{names[-1]}"}.get(symbol[end : end + 1])
    return prefix + "::".join((*names, *([last] if last else [])))


def string_abi(symbol: str) -> StringAbi:
    """Which std::string of libstdc++ a mangled name uses: that before C++11, or that of C++11."""
    if "__cxx11" in symbol or ABI_TAG in symbol:
        return "new"
    return "old" if symbol.startswith("_Z") and "Ss" in _without_names(symbol) else ""


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


def _without_names(symbol: str) -> str:
    """A mangled name without the identifiers in it."""
    parts, at = [], 0
    while at < len(symbol):
        length = _LENGTH.match(symbol, at)
        if length:
            at = length.end() + int(length[0])
            parts.append("#")
        else:
            parts.append(symbol[at])
            at += 1
    return "".join(parts)
