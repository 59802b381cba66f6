"""The facts from the lock with which the checks compare an image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchkiln.errors import ConfigError
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.recipe import RECIPE

SCHEMA = 1


def facts_of(
    locked: LockedCell, labels: Mapping[str, str], *, tag: str, lock_digest: Digest, manifest: Digest
) -> dict[str, Any]:
    """The claims of the lock for the image *manifest* named *tag*, and the labels in its config.

    :raises ConfigError: the cell is unavailable, so there is no image.
    """
    resolution, cell, build = locked.resolution, locked.resolution.cell, locked.resolution.build
    if build is None:
        raise ConfigError(f"{tag}: the cell is unavailable, so no image can be checked")
    return {
        "schema": SCHEMA,
        "image": manifest,
        "claims": {
            "tag": tag,
            "torch": build.version,
            "cuda": cell.cuda,
            "wheel_cuda": build.cuda,
            "status": resolution.status.value,
            "flavor": cell.flavor,
            "os": cell.os,
            "python": locked.base.python,
            "cudnn": build.cudnn,
            "nccl": build.nccl,
            "min_driver": resolution.min_driver,
            "full_driver": resolution.full_driver,
            "archs": list(build.archs),
            "limits": [str(limit) for limit in resolution.limits],
            "lock": lock_digest,
            "base": locked.base.digest,
            "recipe": RECIPE,
        },
        "labels": dict(labels),
        "wheels": [
            {"name": wheel.name, "version": wheel.version, "sha256": wheel.sha256} for wheel in locked.wheels
        ],
    }
