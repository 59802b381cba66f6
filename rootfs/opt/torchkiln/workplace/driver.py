"""The NVIDIA driver → Driver: what it says of itself and its GPUs, asked in a process of its own."""

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
# cuInit's answers that people meet, by the CUDA driver API's cudaError_enum, and what helps.
_ANSWERS = {
    100: ("no GPU", "start the container with the host's GPUs: --gpus all, or --device nvidia.com/gpu=all"),
    101: ("an invalid GPU", "CUDA_VISIBLE_DEVICES names one that is not there: unset it"),
    222: ("an unsupported PTX version", "a newer driver, or an image for an older CUDA"),
    802: ("the fabric is not ready", "start nvidia-fabricmanager on the host, in the driver's version"),
    803: (
        "library and kernel module differ",
        "the driver was updated: restart the host, or load its new module",
    ),
    804: ("forward compatibility is not for this GPU", "take the cuda-compat libraries off LD_LIBRARY_PATH"),
    999: ("an unknown error", "see `dmesg` on the host; nvidia-modprobe or nvidia_uvm may be missing there"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One that this container may use."""

    name: str
    capability: tuple[int, int]
    memory: int  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Driver:
    """`fault` and `remedy` are empty where it works. Versions are empty where nobody told them."""

    version: str
    cuda: str  # the newest that it serves
    gpus: tuple[Gpu, ...]
    ways: tuple[str, ...]  # between pairs of GPUs: "NVLINK", or as `nvidia-smi topo` calls them
    passed: bool  # something of a driver is in this container at all
    fault: str
    remedy: str


def ask(limit: float | None = None) -> Driver:
    """What the driver says within *limit* seconds; one that is broken, crashes or hangs is a fault."""
    argv, limit = [sys.executable, "-I", "-B", str(PROBE)], limit or LIMIT
    try:
        done = subprocess.run(
            argv, capture_output=True, encoding="utf-8", errors="replace", timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return _broken(f"it did not answer within {limit:.0f} s", "see `dmesg` and `nvidia-smi` on the host")
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        return _broken(
            f"it crashed who asked it ({name})", "see `dmesg` on the host; install the driver anew"
        )
    if done.returncode or not done.stdout.startswith("{"):
        why = done.stderr.strip().rpartition("\n")[2]
        why = why or f"it gave no answer (the process that asked ended with {done.returncode})"
        return _broken(why, "install the driver anew on the host")
    told = json.loads(done.stdout)
    gpus = tuple(
        Gpu(name=one["name"], capability=(one["capability"][0], one["capability"][1]), memory=one["memory"])
        for one in told["gpus"]
    )
    passed = bool(told["nodes"] or told["library"] or told["driver"])
    fault, remedy = _fault(told, passed, bool(gpus))
    return Driver(
        version=told["driver"] or "",
        cuda=told["cuda"] or "",
        gpus=gpus,
        ways=tuple(way for _, _, way in told["links"]),
        passed=passed,
        fault=fault,
        remedy=remedy,
    )


def too_old(driver: Driver, needed: str) -> bool:
    """Whether it is older than version *needed*; False where either is not known."""
    return bool(driver.version and needed) and _number(driver.version) < _number(needed)


def unserved(driver: Driver, image: Image) -> tuple[Gpu, ...]:
    """The GPUs for which the image's torch holds no code."""
    return tuple(gpu for gpu in driver.gpus if not serves(image.archs, gpu.capability))


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def _broken(fault: str, remedy: str) -> Driver:
    return Driver(version="", cuda="", gpus=(), ways=(), passed=True, fault=fault, remedy=remedy)


def _fault(told: dict[str, object], passed: bool, found: bool) -> tuple[str, str]:
    """What stands between this container and a GPU."""
    if not passed:
        return "no GPU was passed to this container", "add --gpus all, or --device nvidia.com/gpu=all"
    if told["libcuda"]:
        return (
            f"libcuda.so.1 cannot be loaded: {told['libcuda']}",
            "NVIDIA_DRIVER_CAPABILITIES must hold compute; the container toolkit mounts the library",
        )
    code = told["init"]
    if code != 0:
        name, remedy = _ANSWERS.get(code if isinstance(code, int) else -1, ("", "see `dmesg` on the host"))
        if code == 100 and told["visible"] is not None:
            remedy = f"CUDA_VISIBLE_DEVICES={told['visible']} hides them, or names others: unset it"
        return f"CUDA does not start: error {code}{f', {name}' if name else ''}", remedy
    if not found:
        return "CUDA sees no GPU", "CUDA_VISIBLE_DEVICES may hide them; add --gpus all"
    return "", ""
