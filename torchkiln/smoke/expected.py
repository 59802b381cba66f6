"""The facts from the lock with which the checks compare an image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchkiln.errors import ConfigError
from torchkiln.matrix.gpu_archs import kept_archs
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.recipe import RECIPE
from torchkiln.plan.plan import device_code_facts, plan
from torchkiln.util import codec

SCHEMA = 1


def facts_of(
    locked: LockedCell, config: Mapping[str, Any], *, tag: str, lock_digest: Digest, manifest: Digest
) -> dict[str, Any]:
    """The claims of the lock for the image *manifest* named *tag*, and the settings in its config.

    :param config: the settings for containers: the field `config` of the image's config.
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
            "os": locked.base.os,  # "debian12"; `cell.os` can also name a standalone Python
            "python": locked.python.version,
            "cudnn": build.cudnn,
            "nccl": build.nccl,
            "min_driver": resolution.min_driver,
            "full_driver": resolution.full_driver,
            "archs": list(kept_archs(build.archs, cell.gpus)),
            **device_code_facts(locked),
            "limits": [str(limit) for limit in resolution.limits],
            "lock": lock_digest,
            "base": locked.base.digest,
            "recipe": RECIPE,
        },
        **({"device_code": codec.plain(locked.device_code)} if locked.device_code else {}),
        "labels": config.get("Labels") or {},
        "config": {
            "entrypoint": config.get("Entrypoint") or [],
            "cmd": config.get("Cmd") or [],
            "healthcheck": (config.get("Healthcheck") or {}).get("Test") or [],
            "env": config.get("Env") or [],
        },
        "env": expected_env(locked, lock_digest),
        "wheels": [
            {"name": wheel.name, "version": wheel.version, "sha256": wheel.sha256} for wheel in locked.wheels
        ],
    }


def expected_env(locked: LockedCell, lock_digest: Digest) -> dict[str, str]:
    """The environment variables in the config of an image that is built from *locked*."""
    return dict(plan(locked, (), aliases=(), lock_digest=lock_digest).config.env)
