"""Plans a cell from its committed lock: reads images/<tag>/ and rootfs/, then calls `plan`."""

from __future__ import annotations

from pathlib import Path

from torchkiln.locks.folder import LockFolder
from torchkiln.locks.lock import lock_digest
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.tags import aliases_of
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
    return plan_locked(LockFolder(images, matrix, facts).load(cell), matrix, facts)


def plan_locked(locked: LockedCell, matrix: Matrix, facts: Facts, *, rootfs: Path = ROOTFS) -> ImagePlan:
    """The plan of *locked* with the files of *rootfs*, and of rootfs/ beside the file of *matrix*.

    :raises ConfigError: one of these files is not allowed.
    """
    project = matrix.folder / "rootfs" if matrix.folder else None
    return plan(
        locked,
        load(rootfs, project),
        aliases=aliases_of(locked.resolution, matrix, facts),
        lock_digest=lock_digest(locked),
    )
