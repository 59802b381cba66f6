"""Asks the NVIDIA driver for its version and GPUs, in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from workplace.image import Image, serves

PROBE = Path(__file__).with_name("driver_probe.py")
LIMIT = 60.0  # seconds; eight GPUs without nvidia-persistenced take some twenty
# Frequent results of cuInit (CUDA driver API, cudaError_enum): what they mean, and what to do.
_CUINIT_ERRORS = {
    100: (
        "no CUDA-capable device is detected",
        "start the container with the host's GPUs: --gpus all, or --device nvidia.com/gpu=all",
    ),
    101: ("invalid device ordinal", "CUDA_VISIBLE_DEVICES names a GPU that does not exist: unset it"),
    222: ("unsupported PTX version", "update the driver, or use an image for an older CUDA"),
    802: ("system not yet initialized", "start nvidia-fabricmanager on the host, in the driver's version"),
    803: (
        "driver and library version mismatch",
        "the driver was updated: reboot the host, or load its new kernel module",
    ),
    804: (
        "forward compatibility is not supported on this GPU",
        "remove the cuda-compat libraries from LD_LIBRARY_PATH",
    ),
    999: ("unknown error", "see `dmesg` on the host; nvidia-modprobe or nvidia_uvm may be missing there"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A GPU that this container may use."""

    name: str
    capability: tuple[int, int]
    memory: int  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Driver:
    """`fault` and `remedy` are empty if the driver works; versions are empty if they are unknown."""

    version: str
    cuda: str  # the newest version that it supports
    gpus: tuple[Gpu, ...]
    links: tuple[str, ...]  # between pairs of GPUs: "NVLINK", or as `nvidia-smi topo` names them
    passed: bool  # this container has device nodes or a driver library
    fault: str
    remedy: str


def ask(limit: float | None = None) -> Driver:
    """The driver's answer within *limit* seconds; a crash or a hang is returned as a fault."""
    argv, limit = [sys.executable, "-I", "-B", str(PROBE)], limit or LIMIT
    try:
        done = subprocess.run(
            argv, capture_output=True, encoding="utf-8", errors="replace", timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return _broken(
            f"the NVIDIA driver did not answer within {limit:.0f} s",
            "see `dmesg` and `nvidia-smi` on the host",
        )
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        return _broken(f"the NVIDIA driver crashed ({name})", "see `dmesg` on the host; reinstall the driver")
    if done.returncode or not done.stdout.startswith("{"):
        why = done.stderr.strip().rpartition("\n")[2]
        why = why or f"the NVIDIA driver gave no answer (exit status {done.returncode})"
        return _broken(why, "reinstall the driver on the host")
    answer = json.loads(done.stdout)
    gpus = tuple(
        Gpu(name=gpu["name"], capability=(gpu["capability"][0], gpu["capability"][1]), memory=gpu["memory"])
        for gpu in answer["gpus"]
    )
    passed = bool(answer["nodes"] or answer["library"] or answer["driver"])
    fault, remedy = _fault(answer, passed, bool(gpus))
    return Driver(
        version=answer["driver"] or "",
        cuda=answer["cuda"] or "",
        gpus=gpus,
        links=tuple(link for _, _, link in answer["links"]),
        passed=passed,
        fault=fault,
        remedy=remedy,
    )


def too_old(driver: Driver, needed: str) -> bool:
    """Whether the driver is older than version *needed*; False if either is unknown."""
    return bool(driver.version and needed) and _number(driver.version) < _number(needed)


def unserved(driver: Driver, image: Image) -> tuple[Gpu, ...]:
    """The GPUs for which the image's torch has no code."""
    return tuple(gpu for gpu in driver.gpus if not serves(image.archs, gpu.capability))


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def _broken(fault: str, remedy: str) -> Driver:
    return Driver(version="", cuda="", gpus=(), links=(), passed=True, fault=fault, remedy=remedy)


def _fault(answer: dict[str, object], passed: bool, found: bool) -> tuple[str, str]:
    """Why this container cannot use a GPU, and what to do; empty if it can."""
    if not passed:
        return "no GPU was passed to this container", "add --gpus all, or --device nvidia.com/gpu=all"
    if answer["libcuda"]:
        return (
            f"cannot load libcuda.so.1: {answer['libcuda']}",
            "NVIDIA_DRIVER_CAPABILITIES must include compute; the container toolkit then mounts the library",
        )
    code = answer["init"]
    if code != 0:
        name, remedy = _CUINIT_ERRORS.get(
            code if isinstance(code, int) else -1, ("", "see `dmesg` on the host")
        )
        if code == 100 and answer["visible"] is not None:
            remedy = f"CUDA_VISIBLE_DEVICES={answer['visible']} hides the GPUs, or names others: unset it"
        return f"cuInit failed: error {code}{f', {name}' if name else ''}", remedy
    if not found:
        return "no CUDA-capable device is detected", "add --gpus all; CUDA_VISIBLE_DEVICES may hide the GPUs"
    return "", ""
