"""Makes the lock of a thin cell from the lock of the same cell for all GPUs.

It adds which device code the image keeps. The wheels are the same, so no index is needed. Layers without cut
libraries are the same, too.
"""

from __future__ import annotations

from dataclasses import replace

from torchkiln.locks.freshness import require_fresh
from torchkiln.locks.lock import inputs_digest
from torchkiln.model.cell import Resolution
from torchkiln.model.device_code import DeviceCode, cut_wheels
from torchkiln.model.lock import LockedCell
from torchkiln.model.recipe import DEVICE_CODE_RULE


def lock_thin(
    resolution: Resolution,
    full: LockedCell,
    *,
    below: Resolution,
    bound: tuple[str, ...] = (),
    previous: LockedCell | None = None,
) -> LockedCell:
    """*full*, changed to keep device code only for the GPUs of *resolution*.

    :param below: the present resolution of the same cell for all GPUs.
    :param previous: the present lock; its recorded layers are kept if its files are the same.
    :raises Stale: *full* was made from another matrix or other facts.
    """
    require_fresh(full, below, bound, role=", which has the wheels of the thin image,", run="first run")
    cell = resolution.cell
    wheels = cut_wheels((wheel.name for wheel in full.wheels), own_use=cell.own_use)
    locked = replace(
        full,
        resolution=resolution,
        inputs=inputs_digest(resolution, bound),
        device_code=DeviceCode(rule=DEVICE_CODE_RULE, gpus=cell.gpus, wheels=wheels, own_use=cell.own_use),
    )
    if previous and replace(previous, layers=locked.layers) == locked:
        return previous
    return locked
