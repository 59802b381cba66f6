"""Reads /etc/torchkiln/image.json, which the build wrote: the image's versions."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FACTS = Path("/etc/torchkiln/image.json")
_CUT = re.compile(r"(-sm[0-9]+)+(-ownuse)?")  # in the tag of an image for some GPUs


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
    gpus: tuple[str, ...] = ()  # the only compute capabilities that it is for, ("9.0",); (): all of archs
    wheel_archs: tuple[str, ...] = ()  # of torch's wheel, and so of the image for all GPUs

    @property
    def full_tag(self) -> str:
        """The tag of the image that has all device code of this torch."""
        return _CUT.sub("", self.tag)

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether it has code for a GPU of *capability*."""
        kept = [f"sm_{gpu.replace('.', '')}" for gpu in self.gpus]
        return serves(kept or self.archs, capability)


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
        gpus=tuple(values.get("gpus", ())),
        wheel_archs=tuple(values.get("wheel_archs", values["archs"])),
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
