"""The facts from the lock with which the checks compare an image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchkiln.errors import ConfigError
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell
from torchkiln.plan.plan import image_facts, plan
from torchkiln.util import codec

SCHEMA = 1
# Facts in image.json that the checks do not compare.
_NO_CLAIMS = frozenset(
    {"schema", "cut_wheels", "own_use", "tools", "standalone", "untrusted", "wheels", "archives"}
)


def facts_of(
    locked: LockedCell, config: Mapping[str, Any], *, tag: str, lock_digest: Digest, manifest: Digest
) -> dict[str, Any]:
    """The claims of the lock for the image *manifest* named *tag*, and the settings in its config.

    :param config: the settings for containers: the field `config` of the image's config.
    :raises ConfigError: the cell is unavailable, so there is no image.
    """
    if locked.resolution.build is None:
        raise ConfigError(f"{tag}: the cell is unavailable, so no image can be checked")
    facts = image_facts(locked, tag, lock_digest)
    return {
        "schema": SCHEMA,
        "image": manifest,
        "claims": {name: value for name, value in facts.items() if name not in _NO_CLAIMS},
        **({"device_code": codec.plain(locked.device_code)} if locked.device_code else {}),
        "labels": config.get("Labels") or {},
        "config": {
            "entrypoint": config.get("Entrypoint") or [],
            "cmd": config.get("Cmd") or [],
            "healthcheck": (config.get("Healthcheck") or {}).get("Test") or [],
            "env": config.get("Env") or [],
        },
        "env": expected_env(locked, lock_digest),
        "wheels": facts["wheels"],
    }


def expected_env(locked: LockedCell, lock_digest: Digest) -> dict[str, str]:
    """The environment variables in the config of an image that is built from *locked*."""
    return dict(plan(locked, (), aliases=(), lock_digest=lock_digest).config.env)
