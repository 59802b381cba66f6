"""Repack Debian's packages of NVIDIA's CUDA 11.8 as archives in NVIDIA's layout, to test a real toolkit.

    python -m tests.servers.debian_cuda DEBS ARCHIVES

*DEBS*: a folder with the packages (`PACKAGES` below, of bookworm's non-free: `apt-get download`, 1.5 GB).
*ARCHIVES*: the value for `TORCHKILN_CUDA_ARCHIVES`; it also gets `redist.yaml`, for
`TORCHKILN_CUDA_REDIST`. Not in CI: it takes ten minutes and 8 GB of disk.

The files are NVIDIA's, except for bin/nvcc.profile, which contains Debian's folders, and cuda-gdb,
which is Debian's build. The largest libraries are omitted. There are no pkg-config files.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.servers.cuda_archives import (
    Content,
    Link,
    facts_from,
    locked_archive,
    path_of,
    write_archive,
    write_manifest,
)

RELEASE = "11.8.0"
ARCHIVES_OF = "Debian's nvidia-cuda-toolkit 11.8.89~11.8.0-5~deb12u1, repacked"
PACKAGES = (
    *(
        "nvidia-cuda-toolkit",
        "nvidia-cuda-dev",
        "nvidia-cuda-gdb",
        "libnvvm4",
        "libcudart11.0",
        "libnvrtc11.2",
    ),
    *("libnvrtc-builtins11.8", "libnvtoolsext1", "libnvidia-ml-dev", "libcupti-dev", "libcupti11.8"),
    *(
        "libcu++-dev",
        "libcub-dev",
        "libthrust-dev",
        "libcublas11",
        "libcublaslt11",
        "libnvblas11",
        "libcufft10",
    ),
    *("libcufftw10", "libcurand10", "libcusolver11", "libcusolvermg11", "libcusparse11"),
)
# Equivalent to NVIDIA's nvcc.profile: the paths that nvcc uses.
PROFILE = b"""\
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/$(_NVVM_BRANCH_)/libdevice
LD_LIBRARY_PATH += $(TOP)/lib:
PATH += $(TOP)/$(_NVVM_BRANCH_)/bin:$(_HERE_):
INCLUDES += "-I$(TOP)/$(_TARGET_DIR_)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/$(_TARGET_DIR_)/lib$(_TARGET_SIZE_)/stubs" \
"-L$(TOP)/$(_TARGET_DIR_)/lib$(_TARGET_SIZE_)"
""".replace(b"\\\n", b"")
LIB, TOOLS = "usr/lib/x86_64-linux-gnu", "usr/lib/nvidia-cuda-toolkit"
LARGEST = (
    120_000_000  # bytes: larger libraries, which no image contains, are omitted; packing them takes an hour
)
VERSIONS = {
    "cuda_cccl": "11.8.89",
    "cuda_cudart": "11.8.89",
    "cuda_cuobjdump": "11.8.86",
    "cuda_cupti": "11.8.87",
    "cuda_gdb": "11.8.86",
    "cuda_nvcc": "11.8.89",
    "cuda_nvdisasm": "11.8.86",
    "cuda_nvml_dev": "11.8.86",
    "cuda_nvrtc": "11.8.89",
    "cuda_nvtx": "11.8.86",
    "cuda_profiler_api": "11.8.86",
    "cuda_sanitizer_api": "11.8.86",
    "libcublas": "11.11.3.6",
    "libcufft": "10.9.0.58",
    "libcurand": "10.3.0.86",
    "libcusolver": "11.4.1.48",
    "libcusparse": "11.7.5.86",
}
# The component of a file, by the start of its name; other headers belong to cudart.
HEADERS = {
    "libcublas": ("cublas", "nvblas"),
    "libcufft": ("cufft", "cudalibxt"),
    "libcurand": ("curand",),
    "libcusolver": ("cusolver",),
    "libcusparse": ("cusparse",),
    "cuda_nvrtc": ("nvrtc.h",),
    "cuda_nvtx": ("nvToolsExt", "nvtx3/"),
    "cuda_nvml_dev": ("nvml.h",),
    "cuda_profiler_api": ("cuda_profiler_api.h", "cudaProfiler.h"),
    "cuda_nvcc": ("crt/", "nvPTXCompiler.h", "fatbinary_section.h", "nvvm.h"),
    "cuda_cccl": ("cub/", "thrust/", "cuda/", "nv/"),
    "cuda_gdb": ("cuda-gdb/",),
    "": ("npp", "nvjpeg", "cufile", "CL/", "nvcuvid", "cuviddec"),
}
LIBRARIES = {
    "libcublas": ("libcublas", "libnvblas"),
    "libcufft": ("libcufft",),
    "libcurand": ("libcurand",),
    "libcusolver": ("libcusolver", "liblapack", "libmetis"),
    "libcusparse": ("libcusparse",),
    "cuda_nvrtc": ("libnvrtc",),
    "cuda_nvtx": ("libnvToolsExt",),
    "cuda_nvml_dev": ("libnvidia-ml",),
    "cuda_cupti": ("libcupti", "libnvperf", "libcheckpoint", "libpcsampling"),
    "cuda_nvcc": ("libnvptxcompiler",),
    "cuda_cudart": ("libcudart", "libcudadevrt", "libculibos", "libcuda."),
}


def main(debs: Path, archives: Path) -> None:
    """Write the archives, NVIDIA's manifest of them, and the facts."""
    with tempfile.TemporaryDirectory(dir=archives.parent) as name:
        cupti = Path(name, "cupti")
        rest = Path(name, "rest")
        for package in PACKAGES:
            (deb,) = debs.glob(f"{package}_*.deb")
            into = cupti if package == "libcupti-dev" else rest
            into.mkdir(exist_ok=True)
            subprocess.run(["dpkg-deb", "-x", str(deb), str(into)], check=True)
        parts = components(rest, cupti)
        licence = rest / "usr/share/doc/nvidia-cuda-toolkit/copyright"
        locked = []
        for component, version in VERSIONS.items():
            place = archives / path_of(component, version)
            if not place.is_file():  # written by an earlier run
                write_archive(place, {"LICENSE": licence, **parts[component]})
            locked.append(locked_archive(archives, component, version))
    write_manifest(archives, RELEASE, locked)
    (archives / "redist.yaml").write_bytes(facts_from(archives, RELEASE))


def components(rest: Path, cupti: Path) -> dict[str, dict[str, Content]]:
    """The files of each component, by their path in its archive."""
    parts: dict[str, dict[str, Content]] = {name: {} for name in (*VERSIONS, "")}
    for path in sorted((rest / "usr/include").rglob("*")):
        if path.is_file():
            name = str(path.relative_to(rest / "usr/include"))
            into = "extras/Debugger/include" if name.startswith("cuda-gdb/") else "include"
            short = name.removeprefix("cuda-gdb/")
            parts[_component_of(name, HEADERS, "cuda_cudart")][f"{into}/{short}"] = path.resolve()
    for path in sorted((cupti / "usr/include").rglob("*")):
        if path.is_file():
            parts["cuda_cupti"][f"include/{path.relative_to(cupti / 'usr/include')}"] = path
    for root in (rest, cupti):
        for path in sorted((root / LIB).glob("*")):
            if path.is_symlink() or (path.is_file() and path.stat().st_size < LARGEST):
                content = Link(str(path.readlink())) if path.is_symlink() else path
                parts[_component_of(path.name, LIBRARIES, "")][f"lib/{path.name}"] = content
    for path in sorted((rest / LIB / "stubs").glob("*.so")):
        parts[_component_of(path.name, LIBRARIES, "")][f"lib/stubs/{path.name}"] = path
    for component, names in {
        "cuda_nvcc": ("__nvcc_device_query", "bin2c", "cudafe++", "fatbinary", "nvlink", "ptxas"),
        "cuda_cuobjdump": ("cuobjdump",),
        "cuda_nvdisasm": ("nvdisasm",),
        "cuda_gdb": ("cuda-gdb", "cuda-gdbserver"),
    }.items():
        parts[component] |= {f"bin/{name}": rest / "usr/bin" / name for name in names}
    parts["cuda_nvcc"] |= {
        "bin/nvcc": rest / TOOLS / "bin/nvcc",
        "bin/nvcc.profile": PROFILE,
        "bin/crt/link.stub": rest / TOOLS / "bin/crt/link.stub",
        "bin/crt/prelink.stub": rest / TOOLS / "bin/crt/prelink.stub",
        "nvvm/bin/cicc": rest / TOOLS / "bin/cicc",
        "nvvm/libdevice/libdevice.10.bc": rest / TOOLS / "libdevice/libdevice.10.bc",
        "nvvm/include/nvvm.h": parts["cuda_nvcc"].pop("include/nvvm.h"),
        "nvvm/lib64/libnvvm.so": Link("libnvvm.so.4"),
        "nvvm/lib64/libnvvm.so.4": (rest / LIB / "libnvvm.so.4").resolve(),
    }
    sanitizer = rest / TOOLS / "compute-sanitizer"
    parts["cuda_sanitizer_api"] = {
        f"compute-sanitizer/{path.relative_to(sanitizer)}": path
        for path in sorted(sanitizer.rglob("*"))
        if path.is_file()
    } | {
        f"compute-sanitizer/{name}": rest / "usr/bin" / name
        for name in ("compute-sanitizer", "TreeLauncherSubreaper", "TreeLauncherTargetLdPreloadHelper")
    }
    gdb = rest / "usr/share/cuda-gdb"
    parts["cuda_gdb"] |= {
        f"share/gdb/{path.relative_to(gdb)}": path for path in sorted(gdb.rglob("*")) if path.is_file()
    }
    return parts


def _component_of(name: str, table: Mapping[str, tuple[str, ...]], otherwise: str) -> str:
    return next((one for one, starts in table.items() if name.startswith(starts)), otherwise)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
