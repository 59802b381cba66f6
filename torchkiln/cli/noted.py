"""A folder of locks -> what the lock of a cell says of itself, for commands that need no lock."""

from __future__ import annotations

from pathlib import Path

from torchkiln.errors import Stale
from torchkiln.nouns import Resolution


def stand_ins_in(images: Path, resolution: Resolution) -> tuple[str, ...]:
    """What the lock of *resolution* was resolved against stand-ins of; without a sound lock, nothing."""
    from torchkiln.lock import load_locked
    from torchkiln.stand_in import stand_ins
    from torchkiln.tags import tag_of

    if resolution.build is None:
        return ()
    tag = tag_of(resolution)
    try:
        # Only who says so is read whole: that takes its time, and `list` has a hundred cells.
        data = (images / tag / "lock.json").read_bytes()
        if not any(word in data for word in (b'"stand_in', b"toolkit-stand-in")):
            return ()
        return stand_ins(load_locked(images, tag))
    except (OSError, Stale):
        return ()
