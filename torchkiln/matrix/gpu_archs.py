"""Decides which GPUs the code of a build runs on, by arch list and compute capability.

A cubin ``sm_XY`` runs on capability X.Z for every Z >= Y and on no other major. PTX ``compute_XY`` can be
compiled for every capability from X.Y on, but only by a driver at least as new as the toolkit that wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from torchkiln.matrix.facts import GpuClass

Served = Literal["cubin", "ptx"]

_ARCH = re.compile(r"(sm|compute)_(\d+)(\d)[a-z]?")


def how_served(archs: Iterable[str], capability: str) -> Served | None:
    """How code of *archs* runs on *capability* ("9.0"): as cubin, as PTX that the driver compiles, or not.

    :raises ValueError: an arch or the capability is invalid.
    """
    major, minor = (int(part) for part in capability.split("."))
    parsed = [_parsed(arch) for arch in archs]
    if any(kind == "sm" and x == major and y <= minor for kind, x, y in parsed):
        return "cubin"
    if any(kind == "compute" and (x, y) <= (major, minor) for kind, x, y in parsed):
        return "ptx"
    return None


def served_classes(archs: Iterable[str], gpus: Iterable[GpuClass]) -> tuple[GpuClass, ...]:
    """Those of *gpus* on which code of *archs* runs with some driver."""
    listed = tuple(archs)
    return tuple(gpu_class for gpu_class in gpus if how_served(listed, gpu_class.capability))


def _parsed(arch: str) -> tuple[str, int, int]:
    found = _ARCH.fullmatch(arch)
    if not found:
        raise ValueError(f"not a CUDA architecture: {arch!r}")
    return found[1], int(found[2]), int(found[3])
