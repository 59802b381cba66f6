"""What a lock asks of the package indexes: neutral ground between the stage and the adapter."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """A wheel of the index `pytorch` that is not looked for: who asks knows its hash and what it asks for."""

    name: str  # normalized
    version: str
    filename: str
    sha256: str  # hex
    requires: tuple[str, ...]  # PEP 508


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """One environment, asked for by requirement."""

    requirements: tuple[str, ...]  # PEP 508
    constraints: tuple[str, ...]  # PEP 508
    python: str  # "3.11"
    glibc: tuple[int, int]  # of the image's OS, (2, 36)
    as_of: str  # ISO date: files uploaded on that day or later do not take part
    keep: tuple[tuple[str, str], ...]  # (name, version) of the previous lock, kept where possible
    bound: tuple[str, ...]  # packages that come from the index `pytorch` and from nowhere else
    given: tuple[Given, ...] = ()  # of these neither an index nor a requirement is asked


def variable_of(name: str) -> str:
    """The environment variable that says where the files of package *name* lie that no index has."""
    return f"TORCHKILN_INDEX_{re.sub('[^A-Z0-9]+', '_', name.upper())}"
