"""Defines digests and flavors, the basic types of the other data classes."""

from __future__ import annotations

import re
from typing import Literal, NewType

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
