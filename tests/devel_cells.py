"""A small devel cell: that of tests/cells.py, with the small toolkit of tests/standin/cuda_archives.py."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tests.cells import planned_cell
from tests.gridcase import FACTS, MATRIX
from tests.planned import LOCK_DIGEST
from torchkiln.cuda_redist import Redist
from torchkiln.nouns import Cell, ImagePlan, LockedArchive, LockedCell, Resolution
from torchkiln.plan import plan
from torchkiln.resolve import resolve

RELEASE = "12.1.1"
HOME = "usr/local/cuda-12.1"


def resolution(
    archives: Iterable[LockedArchive], torch: str = "2.7.1", cuda: str = "12.1", release: str = RELEASE
) -> Resolution:
    """The devel cell's answer where NVIDIA's release has *archives*, which are stand-ins."""
    redist = Redist(releases={release: tuple(archives)}, stand_in="a toolkit in miniature")
    cell = Cell(torch=torch, cuda=cuda, flavor="devel", os="debian12", python="3.11")
    return resolve(cell, MATRIX, replace(FACTS, redist=redist))


def with_toolkit(cell: LockedCell, archives: tuple[LockedArchive, ...]) -> LockedCell:
    """*cell* as devel, with *archives*."""
    torch = cell.resolution.cell.torch
    return replace(cell, resolution=resolution(archives, torch), archives=archives, layers=())


def planned_devel(wheels: Iterable[Path], archives: tuple[LockedArchive, ...]) -> ImagePlan:
    """The plan of that cell with *wheels*."""
    small = planned_cell(wheels)
    whole = plan(with_toolkit(small.locked, archives), (), aliases=(), lock_digest=LOCK_DIGEST)
    wheel_layers = [layer for layer in small.layers if layer.kind == "wheels"]  # those of small "big" wheels
    rest = [layer for layer in whole.layers if layer.kind not in ("base", "wheels")]
    return replace(whole, layers=(small.layers[0], *wheel_layers, *rest))
