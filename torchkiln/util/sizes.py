"""Formats sizes in bytes."""

from __future__ import annotations


def size(count: float) -> str:
    """*count* bytes as `821.2 MB`."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
