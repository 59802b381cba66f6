"""Defines digests and flavors, the basic types of the other data classes."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Literal, NewType

Digest = NewType("Digest", str)
Flavor = Literal["runtime", "devel"]

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def parse_digest(text: str) -> Digest:
    """*text* as a digest.

    :raises ValueError: it is not ``sha256:`` and 64 lower-case hex digits.
    """
    if not _DIGEST.fullmatch(text):
        raise ValueError(f"not a sha256 digest: {text!r}")
    return Digest(text)


def digest_of_json(value: Any) -> Digest:
    """The digest of the JSON *value* with sorted keys and without spaces."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return Digest("sha256:" + hashlib.sha256(canonical).hexdigest())
