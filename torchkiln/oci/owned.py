"""A layout, and whether other users could change what is in it."""

from __future__ import annotations

from pathlib import Path

from torchkiln.util.ownership import require_private

_NAMES = ("blobs", "blobs/sha256", "index.json", "oci-layout", ".lock")


def demand_own_layout(layout: Path) -> None:
    """What others could put into a layout would be run, pushed and signed as ours.

    :raises ConfigError: other users can change what is in it.
    """
    require_private(
        layout, "the output folder", _NAMES, hint="run chmod -R go-w on it, or name another --output"
    )
