"""This host's NVIDIA driver → what a container must see of it: device nodes, user libraries, tools.

Found as NVIDIA's container toolkit finds them: by the loader's cache, then in folders where distributions put
them; chosen by NVIDIA_DRIVER_CAPABILITIES. Which are needed was tried on two H200 with driver 580 (torch
2.7.1: matmul, AMP, torch.compile, NVRTC, PTX, NCCL); the others are the toolkit's.

What the kernel did for want of memory: the one who was killed cannot tell.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchkiln.errors import ConfigError, ToolMissing
from torchkiln.model.platform import LINUX_AMD64

CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
_DEFAULT = "compute,utility"

# Names by which programs load them. The bare libcuda.so is for Triton, which links with -lcuda.
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
    LINUX_AMD64.libraries,
    f"{LINUX_AMD64.libraries}/nvidia/current",
    "usr/lib64",
    "usr/lib/wsl/lib",
    "usr/local/nvidia/lib64",
    "run/opengl-driver/lib",
)
_CACHED = re.compile(rf"^\s*(\S+) \({LINUX_AMD64.cached}[^)]*\) => (/\S+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Driver:
    """Nodes of /dev by name; libraries and tools by the name that programs use, as real files."""

    nodes: tuple[tuple[str, Path], ...]
    libraries: tuple[tuple[str, Path], ...]
    tools: tuple[tuple[str, Path], ...]

    @property
    def gpus(self) -> int:
        """How many there are."""
        return sum(bool(re.fullmatch(r"nvidia\d+", name)) for name, _ in self.nodes)


def driver_for(image: Mapping[str, str], gpus: str | None) -> Driver | None:
    """The driver that an image gets whose environment is *image*.

    :param gpus: "all" or "none"; None: as the image says, NVIDIA_VISIBLE_DEVICES, where the host has one.
    :raises ConfigError: *gpus* is none of these.
    :raises ToolMissing: all are wanted, and the host has no driver.
    """
    if gpus not in (None, "all", "none"):
        raise ConfigError(
            f"--gpus {gpus}: without an engine all or none",
            hint="choose among them by -e CUDA_VISIBLE_DEVICES=0, or take --runtime docker",
        )
    said = image.get("NVIDIA_VISIBLE_DEVICES", "void")
    if gpus == "none" or (gpus is None and said in ("none", "void", "")):
        return None
    found = find_driver(capabilities=image.get(CAPABILITIES, ""))
    if found is None and gpus == "all":
        raise ToolMissing("this host has no NVIDIA driver that could be handed on", hint="try: nvidia-smi")
    return found


def models(host: Path = Path("/")) -> tuple[str, ...]:
    """The GPUs of *host* by model, "NVIDIA H200" each, as the kernel module tells them; none without it."""
    found = []
    for path in sorted((host / "proc/driver/nvidia/gpus").glob("*/information")):
        told = dict(line.partition(":")[::2] for line in path.read_text().splitlines())
        found.append(told.get("Model", "").strip())
    return tuple(found)


def find_driver(
    environ: Mapping[str, str] = os.environ,
    *,
    capabilities: str = "",
    host: Path = Path("/"),
    cache: str | None = None,
) -> Driver | None:
    """The driver of *host*; None where there is none, or nothing of it is asked for.

    :param environ: the host's: LD_LIBRARY_PATH and PATH are looked through too.
    :param capabilities: what the image says of CAPABILITIES; empty: compute and utility.
    :param cache: what `ldconfig -p` says; None: it is asked.
    """
    nodes = tuple(
        sorted(
            (path.name, path) for path in (host / "dev").glob("nvidia*") if re.fullmatch(_NODES, path.name)
        )
    )
    asked = {word.strip() for word in (capabilities or _DEFAULT).split(",")}
    served = [kind for kind in _LIBRARIES if kind in asked or "all" in asked]
    if "nvidiactl" not in dict(nodes) or not served:
        return None
    wanted = re.compile("|".join(_LIBRARIES[kind] for kind in served))
    folders = [host / folder for folder in _FOLDERS]
    folders += [Path(folder) for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    libraries = _cached(_ldconfig() if cache is None else cache, wanted, host)
    for name, path in _lying_in(folders, wanted):
        libraries.setdefault(name, path)
    if "libcuda.so.1" in libraries:
        libraries["libcuda.so"] = libraries["libcuda.so.1"]
    elif "compute" in served:
        return None  # nodes without a driver's library: a kernel module that was left behind
    programs = [Path(folder) for folder in environ.get("PATH", os.defpath).split(":") if folder]
    tools = {
        name: path.resolve()
        for kind in served
        for name in _TOOLS[kind]
        for folder in reversed(programs)
        if (path := folder / name).is_file()
    }
    return Driver(nodes=nodes, libraries=tuple(sorted(libraries.items())), tools=tuple(sorted(tools.items())))


def _cached(text: str, wanted: re.Pattern[str], host: Path) -> dict[str, Path]:
    """Of a loader's cache the libraries of this machine's kind; the first of a name counts."""
    found: dict[str, Path] = {}
    for name, path in _CACHED.findall(text):
        real = (host / path.lstrip("/")).resolve()
        if wanted.fullmatch(name) and real.is_file():
            found.setdefault(name, real)
    return found


def _lying_in(folders: Iterable[Path], wanted: re.Pattern[str]) -> Iterable[tuple[str, Path]]:
    for folder in folders:
        for path in sorted(folder.glob("lib*.so*")):
            if wanted.fullmatch(path.name) and path.is_file():
                yield path.name, path.resolve()


def _ldconfig() -> str:
    for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        try:
            return subprocess.run([program, "-p"], capture_output=True, text=True, check=False).stdout
        except OSError:
            continue
    return ""


def killed_for_memory(vmstat: Path = Path("/proc/vmstat")) -> int:
    """How many processes this kernel has killed for want of memory since its start, in whatever cgroup.

    0 where it does not say (`oom_kill` is there since Linux 4.13).
    """
    try:
        lines = vmstat.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
