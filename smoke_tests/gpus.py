"""Decide whether this host can run the checks of a tier.

This is decided before a check starts, so that a fault of the host is not reported as a fault of the image.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

GIB = 1 << 30
FREE_NEEDED = {1: 4 * GIB, 2: 4 * GIB, 3: 22 * GIB}  # bytes on each GPU, by tier
SHM_NEEDED = 64 << 20  # bytes, without peer access: NCCL's buffers are then in /dev/shm

# The meaning of cuInit's CUresult for the user of a container. {}: the path of libcuda.
_INIT = {
    3: "the driver is shutting down or out of resources",
    34: "{} is the stub library of the CUDA toolkit, not a driver",
    46: "another process uses all GPUs exclusively",
    101: "invalid device number",
    304: "permission denied: can this user open /dev/nvidiactl and /dev/nvidia-uvm?",
    802: "the system is not ready: machines with NVSwitch need nvidia-fabricmanager",
    803: "{} does not match the driver in the kernel",
    804: "{} is a forward-compatibility driver that does not support this GPU",
    999: "unknown error when the driver starts: see dmesg; often the kernel module nvidia-uvm is missing",
}
# The first release whose default wheel has code for a GPU that older builds do not support.
_BLACKWELL = "torch >= 2.7 with CUDA 12.8"
_FIRST = {(9, 0): "torch >= 2.1 with CUDA 12.1", (10, 0): _BLACKWELL, (12, 0): _BLACKWELL}
_NEWER = "a newer torch, or a build for a newer CUDA"
_OLDER = "an older torch, or a build for an older CUDA"


def capability(host: Mapping[str, Any]) -> tuple[int, int] | None:
    """The lowest compute capability of the GPUs; None if there are none."""
    return min((_capability(gpu) for gpu in host["driver"].get("gpus", ())), default=None)


def lacking(tier: int, host: Mapping[str, Any], claims: Mapping[str, Any]) -> str | None:
    """A sentence with the most specific reason why this host cannot run checks of *tier*; None: it can.

    :param host: the result of `host_facts`.
    :param claims: of the build: wheel_cuda, min_driver, archs; gpus if it has code only for some GPUs.
    """
    if tier == 0:
        return None
    driver = host["driver"]
    fault = _no_driver(driver) or _too_old(driver, claims) or _too_few(tier, driver)
    fault = fault or _no_kernel(driver, claims) or _too_full(tier, driver) or _no_transport(tier, host)
    return f"host: {fault}" if fault else None


def serves(archs: Sequence[str], capability: tuple[int, int], *, jit: bool = True) -> bool:
    """Whether a build with *archs* runs on *capability*: same major, or, with *jit*, PTX that is not newer.

    >>> serves(["sm_80"], (8, 6)), serves(["sm_80"], (9, 0)), serves(["compute_80"], (9, 0))
    (True, False, True)
    """
    for arch in archs:
        built, kind = _arch(arch), arch.partition("_")[0]
        if arch.endswith("a"):  # code for exactly one chip, machine code or PTX
            fits = built == capability
        elif kind == "sm":
            fits = built[0] == capability[0] and built <= capability
        else:
            fits = kind == "compute" and jit and built <= capability
        if fits:
            return True
    return False


def _no_driver(driver: Mapping[str, Any]) -> str | None:
    if "fault" in driver:
        return f"cannot query the NVIDIA driver: {driver['fault']}; a GPU may be lost: see dmesg"
    if driver["libcuda"]:
        return f"no NVIDIA driver here ({driver['libcuda']})"
    if driver["init"] in (0, 100):
        return None if driver["gpus"] else _no_gpu(driver)
    fault = _INIT.get(driver["init"], "the driver does not start").format(driver["library"])
    return f"{fault} (CUDA error {driver['init']})"


def _no_gpu(driver: Mapping[str, Any]) -> str:
    nodes, visible = driver["nodes"], driver["visible"]
    if not nodes:
        return "no GPU device node here (/dev/nvidia0 ...)"
    if visible is not None:
        return f"CUDA_VISIBLE_DEVICES={visible!r} hides all GPUs, or names one that does not exist"
    return f"the driver finds no GPU, although {', '.join(nodes)} exists: a GPU may be lost: see dmesg"


def _too_old(driver: Mapping[str, Any], claims: Mapping[str, Any]) -> str | None:
    floor, wheel = claims.get("min_driver"), claims.get("wheel_cuda")
    if floor and driver["driver"] and _numbers(driver["driver"]) < _numbers(floor):
        return f"driver {driver['driver']} is too old: this build needs {floor} or newer"
    if wheel and driver["cuda"] and _numbers(driver["cuda"])[0] < _numbers(wheel)[0]:
        return f"the driver supports CUDA {driver['cuda']} at most, but this build needs {wheel}"
    return None


def _too_few(tier: int, driver: Mapping[str, Any]) -> str | None:
    count, visible = len(driver["gpus"]), driver["visible"]
    if tier != 2 or count > 1:
        return None
    hidden = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
    return f"found {count} GPU{hidden}, but this check needs two or more"


def _no_kernel(driver: Mapping[str, Any], claims: Mapping[str, Any]) -> str | None:
    if fault := _not_kept(driver, claims):
        return fault
    archs, wheel, newest = claims.get("archs") or (), claims.get("wheel_cuda"), driver["cuda"]
    # A driver compiles PTX only if the driver is at least as new as the compiler that made the PTX.
    jit = not (wheel and newest) or _numbers(newest) >= _numbers(wheel)
    for capability in sorted({_capability(gpu) for gpu in driver["gpus"]}) if archs else ():
        if not serves(archs, capability, jit=jit):
            remedy = _OLDER if capability < min(map(_arch, archs)) else _FIRST.get(capability, _NEWER)
            name = f"sm_{capability[0]}{capability[1]}"
            return f"no kernel for {name} in this build; use {remedy} (it has {' '.join(archs)})"
    return None


def _not_kept(driver: Mapping[str, Any], claims: Mapping[str, Any]) -> str | None:
    """The first GPU that the image has no device code for, if it has device code for some GPUs only."""
    kept = claims.get("gpus") or ()
    archs = [f"sm_{gpu.replace('.', '')}" for gpu in kept]
    for capability in sorted({_capability(gpu) for gpu in driver["gpus"]}) if archs else ():
        if not serves(archs, capability):
            name = f"compute capability {capability[0]}.{capability[1]}"
            return f"no code for {name} in this image, which is for {', '.join(kept)}; use that for all GPUs"
    return None


def _too_full(tier: int, driver: Mapping[str, Any]) -> str | None:
    needed = FREE_NEEDED[tier]
    for at, gpu in enumerate(driver["gpus"]):
        if gpu["memory"] < needed:
            return f"GPU {at} has {_gib(gpu['memory'])} GiB of memory, but the check needs {_gib(needed)}"
        if gpu["free"] is not None and gpu["free"] < needed:
            return (
                f"GPU {at} has {_gib(gpu['free'])} of {_gib(gpu['memory'])} GiB free, "
                f"but the check needs {_gib(needed)}: other processes use the rest (see nvidia-smi)"
            )
    return None


def _no_transport(tier: int, host: Mapping[str, Any]) -> str | None:
    count = len(host["driver"]["gpus"])
    all_peers = len(host["driver"]["peers"]) == count * (count - 1)
    if tier == 2 and not all_peers and host["shm"] < SHM_NEEDED:
        return (
            f"no peer access between the GPUs, and /dev/shm has {host['shm'] >> 20} MiB free, "
            f"but NCCL needs {SHM_NEEDED >> 20} (--shm-size)"
        )
    return None


def _capability(gpu: Mapping[str, Any]) -> tuple[int, int]:
    major, minor = gpu["capability"]
    return major, minor


def _arch(arch: str) -> tuple[int, int]:
    """The compute capability in the name of an architecture: sm_90a -> (9, 0)."""
    digits = "".join(char for char in arch if char.isdigit())
    return int(digits[:-1]), int(digits[-1])


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}".removesuffix(".0")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))
