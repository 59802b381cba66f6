"""Checks that other users cannot change a layout."""

from __future__ import annotations

from pathlib import Path

from torchkiln.util.ownership import require_private

_NAMES = ("blobs", "blobs/sha256", "index.json", "oci-layout", ".lock")


def demand_own_layout(layout: Path) -> None:
    """Refuse a layout that other users can change: its images are run, pushed and signed.

    :raises ConfigError: other users can change it.
    """
    require_private(
        layout,
        "the output folder",
        _NAMES,
        hint="run chmod -R go-w on it, or choose another folder with --output",
    )
