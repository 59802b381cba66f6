"""LockedBase, LockedTools → their form in files: a lock's part, and the lock of their own beside it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torchkiln.nouns import LockedBase, LockedTools


def artefact_json(found: LockedBase | LockedTools) -> dict[str, Any]:
    """Packages as name → version; no stand-in is no word."""
    values = asdict(found) | {"packages": {one.name: one.version for one in found.packages}}
    return {key: value for key, value in values.items() if key != "stand_in" or value}
