"""Decide whether this host can run the checks of a tier.

This happens before a check starts, so that a fault of the host is not reported as one of the image.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

GIB = 1 << 30
FREE_NEEDED = {1: 4 * GIB, 2: 4 * GIB, 3: 22 * GIB}  # bytes on each GPU, by tier
SHM_NEEDED = 64 << 20  # bytes, without peer access: NCCL's buffers then lie in /dev/shm

# By CUresult of cuInit, what it means for the user of the container. {}: the path of libcuda.
_INIT = {
    3: "the driver is shutting down or out of resources",
    34: "{} is the toolkit's stub, not a driver",
    46: "another process holds every GPU for itself alone",
    101: "a device number is wrong",
    304: "the system refused the driver a call: may this user open /dev/nvidiactl and /dev/nvidia-uvm?",
    802: "the system is not ready: machines with NVSwitch want nvidia-fabricmanager to run",
    803: "{} does not fit the kernel's driver",
    804: "{} is a forward-compatibility driver that does not serve this GPU",
    999: "the driver does not start and does not say why: dmesg may, often it is nvidia-uvm that is missing",
}
# The first release whose default wheel holds code for a GPU, where an older build has none.
_BLACKWELL = "torch >= 2.7 with CUDA 12.8"
_FIRST = {(9, 0): "torch >= 2.1 with CUDA 12.1", (10, 0): _BLACKWELL, (12, 0): _BLACKWELL}
_NEWER = "a newer torch, or a build for a newer CUDA"


def capability(host: Mapping[str, Any]) -> tuple[int, int] | None:
    """The lowest compute capability of the GPUs; None if there are none."""
    return min((_capability(gpu) for gpu in host["driver"].get("gpus", ())), default=None)


def lacking(tier: int, host: Mapping[str, Any], claims: Mapping[str, Any]) -> str | None:
    """A sentence with the most specific reason why this host cannot run checks of *tier*; None: it can.

    :param host: as `host_facts` gives it.
    :param claims: of the build: wheel_cuda, min_driver, archs.
    """
    if tier == 0:
        return None
    driver = host["driver"]
    told = _no_driver(driver) or _too_old(driver, claims) or _too_few(tier, driver)
    told = told or _no_kernel(driver, claims) or _too_full(tier, driver) or _no_way(tier, host)
    return f"host: {told}" if told else None


def serves(archs: Sequence[str], wanted: tuple[int, int], *, jit: bool = True) -> bool:
    """Whether a build with *archs* runs on *wanted*: same major, or, with *jit*, PTX that is not newer.

    >>> serves(["sm_80"], (8, 6)), serves(["sm_80"], (9, 0)), serves(["compute_80"], (9, 0))
    (True, False, True)
    """
    for arch in archs:
        held, kind = _arch(arch), arch.partition("_")[0]
        if arch.endswith("a"):  # code that uses one chip's own instructions, PTX too
            fits = held == wanted
        elif kind == "sm":
            fits = held[0] == wanted[0] and held <= wanted
        else:
            fits = kind == "compute" and jit and held <= wanted
        if fits:
            return True
    return False


def _no_driver(driver: Mapping[str, Any]) -> str | None:
    if "fault" in driver:
        return f"the NVIDIA driver cannot be asked, {driver['fault']}: is a GPU lost? dmesg may tell"
    if driver["libcuda"]:
        return (
            f"no NVIDIA driver in here ({driver['libcuda']}): "
            "docker run wants --gpus all, and the machine a driver"
        )
    if driver["init"] in (0, 100):
        return None if driver["gpus"] else _no_gpu(driver)
    told = _INIT.get(driver["init"], "the driver does not start").format(driver["library"])
    return f"{told} (CUDA error {driver['init']})"


def _no_gpu(driver: Mapping[str, Any]) -> str:
    nodes, visible = driver["nodes"], driver["visible"]
    if not nodes:
        return "no GPU's device node (/dev/nvidia0 ...) in here: docker run wants --gpus all"
    if visible is not None:
        return f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU, or names one that is not here"
    return f"the driver finds no GPU, although {', '.join(nodes)} is there: is it lost? dmesg may tell"


def _too_old(driver: Mapping[str, Any], claims: Mapping[str, Any]) -> str | None:
    floor, wheel = claims.get("min_driver"), claims.get("wheel_cuda")
    if floor and driver["driver"] and _numbers(driver["driver"]) < _numbers(floor):
        return f"driver {driver['driver']} is too old: this build needs {floor} or newer"
    if wheel and driver["cuda"] and _numbers(driver["cuda"])[0] < _numbers(wheel)[0]:
        return f"the driver serves CUDA {driver['cuda']} at most, and this build is made with {wheel}"
    return None


def _too_few(tier: int, driver: Mapping[str, Any]) -> str | None:
    here, visible = len(driver["gpus"]), driver["visible"]
    if tier != 2 or here > 1:
        return None
    hidden = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
    return f"{here} GPU here{hidden}, this check needs two or more"


def _no_kernel(driver: Mapping[str, Any], claims: Mapping[str, Any]) -> str | None:
    archs, wheel, served = claims.get("archs") or (), claims.get("wheel_cuda"), driver["cuda"]
    # A driver turns PTX into code only if it is as new as the compiler that wrote the PTX.
    jit = not (wheel and served) or _numbers(served) >= _numbers(wheel)
    for wanted in sorted({_capability(gpu) for gpu in driver["gpus"]}) if archs else ():
        if not serves(archs, wanted, jit=jit):
            oldest = wanted < min(map(_arch, archs))
            other = "an older torch, or a build for an older CUDA" if oldest else _FIRST.get(wanted, _NEWER)
            name = f"sm_{wanted[0]}{wanted[1]}"
            return f"no kernel for {name} in this build; use {other} (it holds {' '.join(archs)})"
    return None


def _too_full(tier: int, driver: Mapping[str, Any]) -> str | None:
    needed = FREE_NEEDED[tier]
    for at, gpu in enumerate(driver["gpus"]):
        if gpu["memory"] < needed:
            return f"GPU {at} has {_gib(gpu['memory'])} GiB, the check needs {_gib(needed)}"
        if gpu["free"] is not None and gpu["free"] < needed:
            return (
                f"GPU {at} has {_gib(gpu['free'])} of {_gib(gpu['memory'])} GiB free, "
                f"the check needs {_gib(needed)}: another process holds the rest (nvidia-smi shows it)"
            )
    return None


def _no_way(tier: int, host: Mapping[str, Any]) -> str | None:
    here = len(host["driver"]["gpus"])
    all_peers = len(host["driver"]["peers"]) == here * (here - 1)
    if tier == 2 and not all_peers and host["shm"] < SHM_NEEDED:
        return (
            f"no peer access between the GPUs, and /dev/shm has {host['shm'] >> 20} MiB, "
            f"NCCL needs {SHM_NEEDED >> 20} (--shm-size)"
        )
    return None


def _capability(gpu: Mapping[str, Any]) -> tuple[int, int]:
    major, minor = gpu["capability"]
    return major, minor


def _arch(arch: str) -> tuple[int, int]:
    """The compute capability that an architecture's name has in it: sm_90a -> (9, 0)."""
    digits = "".join(char for char in arch if char.isdigit())
    return int(digits[:-1]), int(digits[-1])


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}".removesuffix(".0")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))
