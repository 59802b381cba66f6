"""Wheels, Python and recipe → the key of what they give: a statement of what decides its bytes, as a hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from torchkiln.nouns import LockedWheel
from torchkiln.oci.encode import ENCODER
from torchkiln.recipe import PREFIX, RECIPE


def layer_key(wheels: Iterable[LockedWheel], python: str) -> str:
    """What decides a wheel layer's bytes, or with one wheel its byte-code's; *python* is a full version."""
    decides = {
        "wheels": [wheel.sha256 for wheel in wheels],
        "python": python,
        "prefix": PREFIX,
        "recipe": RECIPE,
        "encoder": ENCODER,
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
