"""Reads marks in a cell's lock, such as `untrusted`, for commands that also work without a lock."""

from __future__ import annotations

from pathlib import Path

from torchkiln.errors import Stale
from torchkiln.lock.lock import load_locked
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Resolution
from torchkiln.model.lock import LockedCell
from torchkiln.model.untrusted import TOOLKIT, is_untrusted


def untrusted_in(images: Path, resolution: Resolution) -> bool:
    """Whether the lock of *resolution* uses an untrusted source; False if there is no valid lock."""
    locked = _with_any(images, resolution, b'"untrusted"', TOOLKIT.encode())
    return locked is not None and is_untrusted(locked)


def by_record_in(images: Path, resolution: Resolution) -> tuple[str, ...]:
    """The wheels from public record in the lock of *resolution*; empty if there is no valid lock."""
    locked = _with_any(images, resolution, b'"by_record"')
    return locked.by_record if locked else ()


def _with_any(images: Path, resolution: Resolution, *words: bytes) -> LockedCell | None:
    """The lock if its file contains one of *words*: parsing all locks would slow `list` down."""
    if resolution.build is None:
        return None
    tag = tag_of(resolution)
    try:
        data = (images / tag / "lock.json").read_bytes()
        return load_locked(images, tag) if any(word in data for word in words) else None
    except (OSError, Stale):
        return None
