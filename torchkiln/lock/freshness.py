"""Whether a lock still fits: what it was made from, against what the matrix and the facts say now.

Whoever asks, asks `outdated`: `lock --check`, a build, and a lock that goes on another lock.
"""

from __future__ import annotations

from pathlib import Path

from torchkiln.errors import Stale
from torchkiln.lock.file import plain, requirements_txt
from torchkiln.lock.lock import how_to_lock, inputs_digest, load_locked
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Resolution
from torchkiln.model.lock import LockedBase, LockedCell, LockedTools

_SHOWN = 5  # packages that are named


def outdated(locked: LockedCell, resolution: Resolution, bound: tuple[str, ...]) -> str:
    """From what else than *resolution* the lock was made, as a phrase; empty: from the same."""
    if locked.inputs == inputs_digest(resolution, bound):
        return ""
    was, now = plain(locked.resolution), plain(resolution)
    differing = sorted(name for name in now.keys() | was if was.get(name) != now.get(name))
    return f"made from other {', '.join(differing)}" if differing else "made by other rules"


def require_fresh(
    locked: LockedCell, resolution: Resolution, bound: tuple[str, ...], *, role: str = "", run: str = "run"
) -> None:
    """Refuse a lock that is `outdated`; *role* and *run* go into the message and its hint.

    :raises Stale: it is.
    """
    if outdated(locked, resolution, bound):
        raise Stale(
            f"the lock of {tag_of(resolution)}{role} was made from another matrix or other facts",
            hint=f"{run}: {how_to_lock(resolution.cell, by_record=bool(locked.by_record))}",
        )


def staleness(
    images: Path,
    resolution: Resolution,
    bound: tuple[str, ...],
    base: LockedBase | None,
    tools: LockedTools | None = None,
    below: Resolution | None = None,
) -> tuple[str, ...]:
    """Why the committed lock of *resolution* no longer fits, a phrase each; empty: it is fresh.

    :param base: the committed base of its OS; *tools*: the committed tools that it names.
    :param below: for a cell with components, the resolution of the same cell without them.
    """
    try:
        locked = load_locked(images, tag_of(resolution))
    except Stale as error:
        return (error.message,)
    reasons = []
    if reason := outdated(locked, resolution, bound):
        reasons.append(reason)
    if base is not None and base.digest != locked.base.digest:
        reasons.append(f"its base is {locked.base.digest[:19]}…, base.json has {base.digest[:19]}…")
    elif base is not None and base != locked.base:
        reasons.append("its base has base.json's digest, and other words about it")
    elif tools is not None and tools != locked.tools:
        reasons.append(f"its tools are not those of {tools.name}.json")
    file = images / tag_of(resolution) / "requirements.txt"
    if not file.is_file() or file.read_bytes() != requirements_txt(locked):
        reasons.append("requirements.txt does not fit lock.json")
    if below is not None and not reasons:
        return _left_behind(images, locked, below)
    return tuple(reasons)


def _left_behind(images: Path, locked: LockedCell, below: Resolution) -> tuple[str, ...]:
    """Why *locked*, which has components, no longer stands on the lock of *below*, a phrase each."""
    try:
        lower = load_locked(images, tag_of(below))
    except Stale as error:
        return (error.message,)
    above = {name for component in locked.components for name in component.wheels}
    kept = {wheel.name: wheel for wheel in locked.wheels if wheel.name not in above}
    there = {wheel.name: wheel for wheel in lower.wheels}
    moved = sorted(name for name in kept.keys() | there if kept.get(name) != there.get(name))
    more = f" and {len(moved) - _SHOWN} more" if len(moved) > _SHOWN else ""
    return (f"{tag_of(below)} has other {', '.join(moved[:_SHOWN])}{more}",) if moved else ()
