"""Reads /etc/torchkiln/image.json, which the build wrote: the image's versions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FACTS = Path("/etc/torchkiln/image.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """The values of image.json that are printed or checked."""

    tag: str
    torch: str  # "2.7.1+cu126"
    cuda: str  # of the tag, "12.1"
    wheel_cuda: str  # of torch's wheel, "12.6"
    cudnn: str
    nccl: str
    python: str
    min_driver: str
    full_driver: str
    archs: tuple[str, ...]  # ("sm_50", ..., "compute_120")
    wheels: tuple[tuple[str, str], ...]  # name, version


def load(path: Path = FACTS) -> Image:
    """The values in the file *path*.

    :raises OSError: there is no such file; every image has one.
    """
    values = json.loads(path.read_text("utf-8"))
    texts = ("tag", "torch", "cuda", "wheel_cuda", "cudnn", "nccl", "python", "min_driver", "full_driver")
    return Image(
        **{name: str(values[name] or "") for name in texts},
        archs=tuple(values["archs"]),
        wheels=tuple((wheel["name"], wheel["version"]) for wheel in values["wheels"]),
    )


def serves(archs: Sequence[str], capability: tuple[int, int]) -> bool:
    """Whether code compiled for *archs* runs on a GPU of *capability*.

    Machine code ("sm_80") runs on GPUs of the same major and the same or a newer minor; PTX ("compute_80") on
    the same or any newer capability; code with a letter ("sm_90a") on exactly that capability.
    Source: CUDA C++ Programming Guide, compute capabilities.
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
