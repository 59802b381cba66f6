"""/etc/torchkiln/image.json → Image: what this image is, as its build wrote it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FACTS = Path("/etc/torchkiln/image.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """The parts of it that are told to people, and judged by."""

    tag: str
    torch: str  # "2.7.1+cu126"
    cuda: str  # what was asked for, "12.1"
    wheel_cuda: str  # what the wheel was built with, "12.6"
    cudnn: str
    nccl: str
    python: str
    min_driver: str
    full_driver: str
    archs: tuple[str, ...]  # ("sm_50", ..., "compute_120")
    wheels: tuple[tuple[str, str], ...]  # name, version


def load(path: Path = FACTS) -> Image:
    """What *path* tells.

    :raises OSError: it is not there. It is, in every image.
    """
    told = json.loads(path.read_text("utf-8"))
    texts = ("tag", "torch", "cuda", "wheel_cuda", "cudnn", "nccl", "python", "min_driver", "full_driver")
    return Image(
        **{name: str(told[name] or "") for name in texts},
        archs=tuple(told["archs"]),
        wheels=tuple((wheel["name"], wheel["version"]) for wheel in told["wheels"]),
    )


def serves(archs: Sequence[str], capability: tuple[int, int]) -> bool:
    """Whether code compiled for *archs* runs on a GPU of *capability*.

    Machine code runs on its own generation, from its own minor on; PTX on everything younger; a name with a
    letter behind it ("sm_90a") on that very GPU alone. (CUDA C++ Programming Guide, compute capabilities.)
    """
    for arch in archs:
        kind, _, number = arch.partition("_")
        digits = number.rstrip("abcdefghijklmnopqrstuvwxyz")
        if not digits.isdecimal():
            continue
        built = (int(digits[:-1]), int(digits[-1]))
        if digits != number:
            fits = built == capability
        elif kind == "compute":
            fits = built <= capability
        else:
            fits = built[0] == capability[0] and built[1] <= capability[1]
        if fits:
            return True
    return False
