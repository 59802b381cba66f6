"""Plans a cell from its committed lock: reads images/<tag>/ and rootfs/, then calls `plan`."""

from __future__ import annotations

from pathlib import Path

from torchkiln.lock.lock import how_to_lock, load_locked, lock_digest
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.resolve import require_buildable, resolve
from torchkiln.matrix.tags import aliases_of, tag_of
from torchkiln.model.cell import Cell
from torchkiln.model.lock import LockedCell
from torchkiln.model.plan import ImagePlan
from torchkiln.plan.plan import plan
from torchkiln.plan.rootfs import load
from torchkiln.util.places import ROOTFS


def plan_cell(cell: Cell, matrix: Matrix, facts: Facts, *, images: Path) -> ImagePlan:
    """The plan of *cell* from its lock in *images*.

    :raises Unresolvable: the cell is unavailable.
    :raises Stale: its lock is missing or invalid.
    :raises ConfigError: rootfs/ is invalid.
    """
    resolution = resolve(cell, matrix, facts)
    require_buildable(resolution)
    locked = load_locked(images, tag_of(resolution), how=how_to_lock(cell))
    return plan_locked(locked, matrix, facts)


def plan_locked(locked: LockedCell, matrix: Matrix, facts: Facts, *, rootfs: Path = ROOTFS) -> ImagePlan:
    """The plan of *locked* with the files of *rootfs*.

    :raises ConfigError: *rootfs* is invalid.
    """
    return plan(
        locked,
        load(rootfs),
        aliases=aliases_of(locked.resolution, matrix, facts),
        lock_digest=lock_digest(locked),
    )
