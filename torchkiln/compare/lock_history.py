"""A folder of locks, an earlier revision of it -> the images whose locks differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torchkiln.compare.locks import LockChange, lock_changes
from torchkiln.errors import Stale
from torchkiln.lock.file import from_json
from torchkiln.lock.lock import load_locked
from torchkiln.model.lock import LockedCell
from torchkiln.util.git import Revision


def changes_since(
    revision: Revision, images: Path, tags: Sequence[str], say: Callable[[str], None]
) -> tuple[LockChange, ...]:
    """How the locks of *tags*, without any of all images, differ from those of *revision*.

    :param say: hears of a lock of then that this version cannot read; it counts as none.
    :raises Stale: a lock of today is broken.
    """
    chosen = tags or sorted(revision.names() | {path.parent.name for path in images.glob("*/lock.json")})
    then = {tag: locked for tag in chosen if (locked := _then(revision, tag, say))}
    now = {tag: load_locked(images, tag) for tag in chosen if (images / tag / "lock.json").exists()}
    return lock_changes(then, now, chosen)


def _then(revision: Revision, tag: str, say: Callable[[str], None]) -> LockedCell | None:
    data = revision.read(f"{tag}/lock.json")
    try:
        return from_json(data, where=f"{revision.name}:{tag}/lock.json") if data is not None else None
    except Stale as error:
        say(f"taken as not there: {error.message}")
        return None
