"""Asks the NVIDIA driver for its version and GPUs, in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workplace.image import Image, serves
from workplace.messages import listed, message

PROBE = Path(__file__).with_name("driver_probe.py")
LIMIT = 60.0  # seconds; eight GPUs without nvidia-persistenced take some twenty
# Frequent results of cuInit (CUDA driver API, cudaError_enum); messages say what they mean, and what to do.
_CUINIT_ERRORS = frozenset({100, 101, 222, 802, 803, 804, 999})


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A GPU that this container may use."""

    name: str
    capability: tuple[int, int]
    memory: int  # bytes

    def __str__(self) -> str:
        return f"{self.name} ({self.capability[0]}.{self.capability[1]})"


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
        return _broken(message("driver.silent", limit=limit), message("driver.silent.do"))
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        return _broken(message("driver.crashed", signal=name), message("driver.crashed.do"))
    if done.returncode or not done.stdout.startswith("{"):
        why = done.stderr.strip().rpartition("\n")[2]
        why = why or message("driver.no-answer", status=done.returncode)
        return _broken(why, message("driver.no-answer.do"))
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
    """The GPUs for which the image has no device code."""
    return tuple(gpu for gpu in driver.gpus if not image.runs_on(gpu.capability))


def another_image(image: Image, gpus: Sequence[Gpu]) -> str:
    """Which image to use for *gpus*, for which *image* has no device code."""
    if image.gpus and all(serves(image.wheel_archs, gpu.capability) for gpu in gpus):
        return message("gpus.full-image", tag=image.full_tag)
    return message("gpus.another-torch")


def kinds(gpus: Sequence[Gpu]) -> str:
    """`NVIDIA A100 (8.0), NVIDIA H100 (9.0)`: each kind once."""
    return listed(sorted({str(gpu) for gpu in gpus}))


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def _broken(fault: str, remedy: str) -> Driver:
    return Driver(version="", cuda="", gpus=(), links=(), passed=True, fault=fault, remedy=remedy)


def _fault(answer: dict[str, object], passed: bool, found: bool) -> tuple[str, str]:
    """Why this container cannot use a GPU, and what to do; empty if it can."""
    if not passed:
        return message("driver.not-passed"), message("driver.not-passed.do")
    if answer["libcuda"]:
        return message("driver.not-loaded", error=answer["libcuda"]), message("driver.not-loaded.do")
    code, visible = answer["init"], answer["visible"]
    if code != 0:
        if code not in _CUINIT_ERRORS:
            return message("cuinit", code=code), message("cuinit.do")
        hidden = code == 100 and visible is not None
        remedy = message("driver.hidden", visible=visible) if hidden else message(f"cuinit.{code}.do")
        return message("cuinit.named", code=code, name=message(f"cuinit.{code}")), remedy
    if not found:
        return message("driver.no-device"), message("driver.no-device.do")
    return "", ""
