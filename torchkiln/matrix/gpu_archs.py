"""Decides which GPUs the code of a build runs on, by arch list and compute capability.

A cubin ``sm_XY`` runs on capability X.Z for every Z >= Y and on no other major. PTX ``compute_XY`` can be
compiled for every capability from X.Y on, but only by a driver at least as new as the toolkit that wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal

from torchkiln.matrix.facts import GpuClass
from torchkiln.util.versions import numbers

Served = Literal["cubin", "ptx"]

_ARCH = re.compile(r"(sm|compute)_(\d+)(\d)[a-z]?")


def how_served(archs: Iterable[str], capability: str) -> Served | None:
    """How code of *archs* runs on *capability* ("9.0"): as cubin, as PTX that the driver compiles, or not.

    :raises ValueError: an arch or the capability is invalid.
    """
    found = _loaded(tuple(archs), capability)
    return None if found is None else "cubin" if found[0] == "sm" else "ptx"


def served_classes(
    archs: Iterable[str], gpus: Iterable[GpuClass], kept: Sequence[str] = ()
) -> tuple[GpuClass, ...]:
    """The *gpus* on which code of *archs* runs with some driver.

    :param kept: the capabilities whose device code an image keeps; empty: all.
    """
    listed = tuple(archs)
    return tuple(
        gpu_class
        for gpu_class in gpus
        if is_kept_for(gpu_class.capability, kept) and how_served(listed, gpu_class.capability)
    )


def is_kept_for(capability: str, kept: Sequence[str]) -> bool:
    """Whether an image that keeps device code for *kept* certainly has code for *capability*.

    An empty *kept* keeps all device code.

    Code for a capability runs on the same major with the same or a higher minor. Code for a lower minor may
    be missing: for 8.6, the image keeps sm_80 of one library, and only sm_86 of another.
    """
    major, minor = numbers(capability)
    return not kept or any(x == major and y <= minor for x, y in map(numbers, kept))


def kept_archs(archs: Sequence[str], kept: Sequence[str]) -> tuple[str, ...]:
    """The *archs* that GPUs of the capabilities *kept* load; empty: all of them.

    A capability loads the machine code of the highest minor that runs on it, else the newest PTX.
    """
    if not kept:
        return tuple(archs)
    loaded = {_loaded(tuple(archs), capability) for capability in kept}
    return tuple(arch for arch in archs if _parsed(arch) in loaded)


@lru_cache(maxsize=4096)  # the search for nearest cells and aliases repeats its calls thousands of times
def _loaded(archs: tuple[str, ...], capability: str) -> tuple[str, int, int] | None:
    """Kind, major and minor of the code that a GPU of *capability* loads; None: there is none for it."""
    major, minor = numbers(capability)
    parsed = [_parsed(arch) for arch in archs]
    machine = [(kind, x, y) for kind, x, y in parsed if kind == "sm" and x == major and y <= minor]
    ptx = [(kind, x, y) for kind, x, y in parsed if kind == "compute" and (x, y) <= (major, minor)]
    return max(machine or ptx, default=None)


def _parsed(arch: str) -> tuple[str, int, int]:
    found = _ARCH.fullmatch(arch)
    if not found:
        raise ValueError(f"not a CUDA architecture: {arch!r}")
    return found[1], int(found[2]), int(found[3])
