"""What an index tells of a release: its files, and what METADATA of a wheel says."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class FileAt:
    """One file of an index and where it lies now."""

    filename: str
    url: str = field(repr=False)
    size: int | None  # bytes; None where the index does not tell
    sha256: str  # hex


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelMetadata:
    """Of a wheel's METADATA what decides whether and with what it can be installed."""

    requires_python: str  # "" where it tells none
    requires: tuple[str, ...]  # PEP 508, as they stand there
    version: str = ""
