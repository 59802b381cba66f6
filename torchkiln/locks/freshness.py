"""Decides whether a lock is stale: whether the matrix and the facts that it was made from have changed.

`lock --check`, builds and locks of thin cells all use `outdated`.
"""

from __future__ import annotations

from pathlib import Path

from torchkiln.errors import Stale
from torchkiln.locks.file import plain, requirements_txt
from torchkiln.locks.lock import how_to_lock, inputs_digest, load_locked, some_of
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Resolution
from torchkiln.model.lock import LockedBase, LockedCell, LockedTools
from torchkiln.util.strict_json import holds


def outdated(locked: LockedCell, resolution: Resolution, bound: tuple[str, ...]) -> str:
    """How the inputs of the lock differ from *resolution*, as a phrase; empty: they are the same."""
    if locked.inputs == inputs_digest(resolution, bound):
        return ""
    was, now = plain(locked.resolution), plain(resolution)
    differing = sorted(name for name in now.keys() | was if was.get(name) != now.get(name))
    return f"locked with other {', '.join(differing)}" if differing else "locked with other rules"


def require_fresh(
    locked: LockedCell, resolution: Resolution, bound: tuple[str, ...], *, role: str = "", run: str = "run"
) -> None:
    """Check *locked* by `outdated`; *role* and *run* are parts of the message and its hint.

    :raises Stale: *locked* is outdated.
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
    """Why the committed lock of *resolution* is stale, as phrases; empty: it is fresh.

    :param base: the committed base of the cell's OS; None: not compared.
    :param tools: the committed tools of the cell; None: not compared.
    :param below: the resolution of the same cell for all GPUs; None unless the cell is thin.
    """
    try:
        locked = load_locked(images, tag_of(resolution))
    except Stale as error:
        return (error.message,)
    reasons = []
    if reason := outdated(locked, resolution, bound):
        reasons.append(reason)
    if base is not None and base != locked.base:
        reasons.append(f"its base ({locked.base.digest[:19]}…) differs from base.json ({base.digest[:19]}…)")
    elif tools is not None and tools != locked.tools:
        reasons.append(f"its tools differ from {tools.name}.json")
    file = images / tag_of(resolution) / "requirements.txt"
    if not holds(file, requirements_txt(locked)):
        reasons.append("requirements.txt does not match lock.json")
    if below is not None and not reasons:
        return _differing_below(images, locked, below)
    return tuple(reasons)


def _differing_below(images: Path, locked: LockedCell, below: Resolution) -> tuple[str, ...]:
    """How the lock of *below* differs from *locked*, which is based on it."""
    try:
        lower = load_locked(images, tag_of(below))
    except Stale as error:
        return (error.message,)
    was, present = ({wheel.name: wheel.sha256 for wheel in each.wheels} for each in (locked, lower))
    moved = sorted(name for name in was.keys() | present if was.get(name) != present.get(name))
    return (f"{tag_of(below)} differs in {some_of(moved)}",) if moved else ()
