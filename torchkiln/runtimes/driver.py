"""Finds the parts of the host's NVIDIA driver that a container needs: device nodes, libraries, tools.

They are found as NVIDIA's container toolkit finds them: in the loader's cache, then in the library folders of
distributions; NVIDIA_DRIVER_CAPABILITIES selects among them. The list was tested on two H200 with driver 580
(torch 2.7.1: matmul, AMP, torch.compile, NVRTC, PTX, NCCL), and completed with the names in the toolkit.

Also counts the processes that the kernel killed because memory ran out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchkiln.errors import ConfigError, ToolMissing
from torchkiln.model.platform import LINUX_AMD64

CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
_DEFAULT = "compute,utility"

# Patterns of the names under which programs load libraries. Triton links with -lcuda: it needs libcuda.so.
_LIBRARIES: Mapping[str, str] = {
    "compute": r"libcuda\.so(\.1)?|libcudadebugger\.so\.1|libnvidia-ptxjitcompiler\.so\.1"
    r"|libnvidia-nvvm(70)?\.so\.4|libnvidia-gpucomp\.so\.[\d.]+|libnvidia-opencl\.so\.1",
    "utility": r"libnvidia-ml\.so\.1|libnvidia-cfg\.so\.1",
}
_TOOLS: Mapping[str, tuple[str, ...]] = {
    "compute": ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"),
    "utility": ("nvidia-smi", "nvidia-debugdump"),
}
_NODES = r"nvidia\d+|nvidiactl|nvidia-uvm|nvidia-uvm-tools"
_FOLDERS = (
    f"{LINUX_AMD64.libraries} {LINUX_AMD64.libraries}/nvidia/current usr/lib64 usr/lib/wsl/lib"
    " usr/local/nvidia/lib64 run/opengl-driver/lib"
).split()
_CACHE_LINE = re.compile(rf"^\s*(\S+) \({LINUX_AMD64.cached}[^)]*\) => (/\S+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostDriver:
    """Device nodes by name; libraries and tools by the name that programs use, with links resolved."""

    nodes: tuple[tuple[str, Path], ...]
    libraries: tuple[tuple[str, Path], ...]
    tools: tuple[tuple[str, Path], ...]

    @property
    def gpus(self) -> int:
        return sum(bool(re.fullmatch(r"nvidia\d+", name)) for name, _ in self.nodes)


def driver_for(image: Mapping[str, str], gpus: str | None) -> HostDriver | None:
    """The driver for an image with the environment *image*; None: the container gets no GPUs.

    :param gpus: "all" or "none"; None: by the image's NVIDIA_VISIBLE_DEVICES, if the host has a driver.
    :raises ConfigError: *gpus* has another value.
    :raises ToolMissing: *gpus* is "all", and the host has no driver.
    """
    if gpus not in (None, "all", "none"):
        raise ConfigError(
            f"--gpus {gpus}: only all or none is supported without an engine",
            hint="set CUDA_VISIBLE_DEVICES=0 instead (`torchkiln run`: -e CUDA_VISIBLE_DEVICES=0)",
        )
    visible = image.get("NVIDIA_VISIBLE_DEVICES", "void")
    if gpus == "none" or (gpus is None and visible in ("none", "void", "")):
        return None
    found = find_driver(capabilities=image.get(CAPABILITIES, ""))
    if found is None and gpus == "all":
        raise ToolMissing("no NVIDIA driver found on this host", hint="check with: nvidia-smi")
    return found


def models(host: Path = Path("/")) -> tuple[str, ...]:
    """The model of each GPU, such as "NVIDIA H200", from the kernel module; empty without one."""
    found = []
    for path in sorted((host / "proc/driver/nvidia/gpus").glob("*/information")):
        fields = dict(line.partition(":")[::2] for line in path.read_text().splitlines())
        found.append(fields.get("Model", "").strip())
    return tuple(found)


def find_driver(
    environ: Mapping[str, str] = os.environ,
    *,
    capabilities: str = "",
    host: Path = Path("/"),
    cache: str | None = None,
) -> HostDriver | None:
    """The driver of *host*; None if there is none, or if *capabilities* selects no part of it.

    :param environ: the host's environment; LD_LIBRARY_PATH and PATH are searched too.
    :param capabilities: the image's value of CAPABILITIES; empty: compute and utility.
    :param cache: the output of `ldconfig -p`; None: run it.
    """
    listed = ((path.name, path) for path in (host / "dev").glob("nvidia*"))
    nodes = tuple(sorted((name, path) for name, path in listed if re.fullmatch(_NODES, name)))
    requested = {word.strip() for word in (capabilities or _DEFAULT).split(",")}
    kinds = [kind for kind in _LIBRARIES if kind in requested or "all" in requested]
    if "nvidiactl" not in dict(nodes) or not kinds:
        return None
    pattern = re.compile("|".join(_LIBRARIES[kind] for kind in kinds))
    folders = [host / folder for folder in _FOLDERS]
    folders += [Path(folder) for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    libraries = _in_cache(_ldconfig() if cache is None else cache, pattern, host)
    for path in (path for folder in folders for path in sorted(folder.glob("lib*.so*"))):
        if pattern.fullmatch(path.name) and path.is_file():
            libraries.setdefault(path.name, path.resolve())
    if "libcuda.so.1" in libraries:
        libraries["libcuda.so"] = libraries["libcuda.so.1"]
    elif "compute" in kinds:
        return None  # nodes without libcuda: only the kernel module is installed
    programs = [Path(folder) for folder in environ.get("PATH", os.defpath).split(":") if folder]
    tools = {
        name: path.resolve()
        for kind in kinds
        for name in _TOOLS[kind]
        for folder in reversed(programs)
        if (path := folder / name).is_file()
    }
    return HostDriver(
        nodes=nodes, libraries=tuple(sorted(libraries.items())), tools=tuple(sorted(tools.items()))
    )


def _in_cache(text: str, pattern: re.Pattern[str], host: Path) -> dict[str, Path]:
    """The libraries of this architecture in a loader's cache; the first one of each name."""
    found: dict[str, Path] = {}
    for name, path in _CACHE_LINE.findall(text):
        real = (host / path.lstrip("/")).resolve()
        if pattern.fullmatch(name) and real.is_file():
            found.setdefault(name, real)
    return found


def _ldconfig() -> str:
    program = shutil.which("ldconfig", path="/sbin:/usr/sbin")
    return subprocess.run([program, "-p"], capture_output=True, text=True).stdout if program else ""


def killed_for_memory(vmstat: Path = Path("/proc/vmstat")) -> int:
    """The number of processes that this kernel has killed since boot because memory ran out, in any cgroup.

    0 if the kernel does not count them (`oom_kill` needs Linux 4.13).
    """
    text = vmstat.read_text() if os.access(vmstat, os.R_OK) else ""
    return sum(map(int, re.findall(r"^oom_kill (\d+)$", text, re.MULTILINE)))
