"""Arch lists against GPUs: which compute capabilities a build's code serves, and how.

A cubin ``sm_XY`` runs on capability X.Z for every Z >= Y and on no other major. PTX ``compute_XY`` can be
compiled for anything from X.Y on, but only by a driver at least as new as the toolkit that wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from torchkiln.matrix.facts import GpuClass

Served = Literal["cubin", "ptx"]

_ARCH = re.compile(r"(sm|compute)_(\d+)(\d)[a-z]?")


def how_served(archs: Iterable[str], capability: str) -> Served | None:
    """How code of *archs* runs on *capability* ("9.0"): as it is, by the driver's compiler, or not at all.

    :raises ValueError: an arch or a capability that is none.
    """
    major, minor = (int(part) for part in capability.split("."))
    parsed = [_parsed(arch) for arch in archs]
    if any(kind == "sm" and x == major and y <= minor for kind, x, y in parsed):
        return "cubin"
    if any(kind == "compute" and (x, y) <= (major, minor) for kind, x, y in parsed):
        return "ptx"
    return None


def capability_served(archs: Iterable[str], capability: str, *, jit: bool = False) -> bool:
    """Whether code of *archs* runs on *capability*.

    :param jit: the driver is as new as the build's toolkit (`Resolution.full_driver`), so PTX counts too.
    """
    how = how_served(archs, capability)
    return how == "cubin" or (jit and how == "ptx")


def served_classes(archs: Iterable[str], gpus: Iterable[GpuClass]) -> tuple[GpuClass, ...]:
    """Those of *gpus* that code of *archs* serves on some driver."""
    listed = tuple(archs)
    return tuple(gpu_class for gpu_class in gpus if how_served(listed, gpu_class.capability))


def _parsed(arch: str) -> tuple[str, int, int]:
    found = _ARCH.fullmatch(arch)
    if not found:
        raise ValueError(f"not a CUDA architecture: {arch!r}")
    return found[1], int(found[2]), int(found[3])
