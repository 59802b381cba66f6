"""What calls each library with device code: a case of library_cases.py, another check, or nothing, and why.

The check `libraries` fails for a locked wheel, or a file with device code, that is not in these tables.
Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Called(NamedTuple):
    """A library that is called: by a case, whose results are compared with FP64 on the CPU."""

    case: str


class ByCheck(NamedTuple):
    """A library that another check calls and compares.

    *otherwise* is the reason why no check calls it in images to which that check does not apply.
    """

    check: str
    otherwise: str = ""


class NotCalled(NamedTuple):
    """A library that no check calls."""

    reason: str


_NO_DEVICE_CODE = "it has no device code"
_HEADERS = NotCalled("headers and compilers, which the check extension uses in devel images")
_BY_SEMI_STRUCTURED = ByCheck(
    "semi-structured", "torch before 2.6 contains releases of it that differ in the GPUs that they support"
)
_STORAGE = NotCalled("reads files into the GPU's memory; needs the kernel module nvidia-fs")
_SHMEM = NotCalled("torch calls it only for symmetric memory of several GPUs, and not without being asked to")

# By the name of NVIDIA's wheel without the CUDA version at its end.
WHEELS: Mapping[str, Called | ByCheck | NotCalled] = {
    "cuda-bindings": NotCalled(f"Python's interface to the driver: {_NO_DEVICE_CODE}"),
    "cuda-core": NotCalled(f"Python's interface to the runtime: {_NO_DEVICE_CODE}"),
    "cuda-pathfinder": NotCalled(f"finds libraries: {_NO_DEVICE_CODE}"),
    "cuda-toolkit": NotCalled("a wheel without files, which requires the others"),
    "nvidia-cublas": Called("products"),
    "nvidia-cuda-cccl": _HEADERS,
    "nvidia-cuda-crt": _HEADERS,
    "nvidia-cuda-cupti": Called("profiler"),
    "nvidia-cuda-nvcc": _HEADERS,
    "nvidia-cuda-nvrtc": ByCheck("nvrtc"),
    "nvidia-cuda-profiler-api": _HEADERS,
    "nvidia-cuda-runtime": Called("products"),
    "nvidia-cudnn": ByCheck("cudnn"),
    "nvidia-cufft": Called("fourier"),
    "nvidia-cufile": _STORAGE,
    "nvidia-curand": Called("curand"),
    "nvidia-cusolver": Called("decompositions"),
    "nvidia-cusparse": Called("sparse"),
    "nvidia-cusparselt": _BY_SEMI_STRUCTURED,
    "nvidia-ml-py": NotCalled(f"Python's interface to the driver's figures: {_NO_DEVICE_CODE}"),
    "nvidia-nccl": Called("collectives"),
    "nvidia-nvjitlink": NotCalled(f"cuSPARSE and cuSOLVER load it to link code: {_NO_DEVICE_CODE}"),
    "nvidia-nvml-dev": _HEADERS,
    "nvidia-nvshmem": _SHMEM,
    "nvidia-nvtx": NotCalled(f"ranges for profilers, which do nothing without one: {_NO_DEVICE_CODE}"),
    "nvidia-nvvm": _HEADERS,
}

# By a pattern of the file's name, without the version at its end. Wheels of torch for CUDA 11 contain
# NVIDIA's libraries, and auditwheel adds a hash to the names of those in torchvision's.
FILES: Mapping[str, Called | ByCheck | NotCalled] = {
    r"libtorch_cuda(_cu|_cpp)?": Called("products"),
    r"libtorch_cuda_linalg": Called("decompositions"),
    r"libtorch_nvshmem": _SHMEM,
    r"libcublas(Lt)?": Called("products"),
    r"libcudnn_(ops|cnn|adv)(_infer|_train)?": ByCheck("cudnn"),
    r"libcudnn_engines_precompiled": ByCheck("cudnn"),
    r"libcudnn_(engines_\w+|ext)": NotCalled("cuDNN uses it for few operations; the check cudnn loads it"),
    r"libcufft": Called("fourier"),
    r"libcufftw": NotCalled("FFTW's interface to cuFFT, which torch does not use"),
    r"libcufile": _STORAGE,
    r"libcurand": Called("curand"),
    r"libcusolver": Called("decompositions"),
    r"libcusolverMg": NotCalled("solves on several GPUs; torch does not use it"),
    r"libcusparse": Called("sparse"),
    r"libcusparseLt": _BY_SEMI_STRUCTURED,
    r"libnccl": Called("collectives"),
    r"libnvjpeg": Called("jpeg"),
    r"(lib)?nvshmem\w*": _SHMEM,
    r"libnvblas": NotCalled("replaces another program's BLAS; torch does not use it"),
    r"nvfuser_tests": NotCalled("a test program in the wheels of torch 2.0 and 2.1; nothing runs it"),
    r"_C|_C_stable": ByCheck("vision-audio"),
    r"libtorchaudio|libctc_prefix_decoder|torchaudio_prefixctc": ByCheck("vision-audio"),
}
_VERSION = re.compile(r"([.-][0-9a-f]{8})?(\.abi3|\.cpython-[\w-]+)?\.so(\.[\d.]+)?")


def of_nvidia(wheels: Iterable[str]) -> list[str]:
    """NVIDIA's among the names of *wheels*, sorted."""
    return sorted(name for name in wheels if name.startswith(("nvidia-", "cuda-")))


def of_wheel(name: str) -> Called | ByCheck | NotCalled | None:
    """The row of a wheel; None: there is none."""
    return WHEELS.get(re.sub(r"-cu\d+$", "", name))


def of_file(name: str) -> Called | ByCheck | NotCalled | None:
    """The row of a file; None: there is none."""
    stem = next(
        (name[: found.start()] for found in _VERSION.finditer(name) if found.end() == len(name)), name
    )
    return next((row for pattern, row in FILES.items() if re.fullmatch(pattern, stem)), None)
