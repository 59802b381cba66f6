"""The repository's own matrix and facts, and one resolution by a short name: what the grid's tests share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torchkiln.matrix import facts as facts_of
from torchkiln.matrix import matrix as matrix_of
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import Selection, select
from torchkiln.model.cell import Resolution

ROOT = Path(__file__).resolve().parent.parent
FACTS = facts_of.load()
MATRIX = matrix_of.read(ROOT / "matrix.yaml", FACTS)
ASKED = replace(MATRIX, beyond=())
"""torch x CUDA, and nothing beside it."""
NATIVE_FIRST = replace(MATRIX, prefer="native")


def answer(
    torch: str, cuda: str, *, flavor: str = "runtime", os: str = "debian12", matrix: matrix_of.Matrix = MATRIX
) -> Resolution:
    """The resolution of one cell of *matrix*."""
    (cell,) = select(Selection(torch=(torch,), cuda=(cuda,), flavor=(flavor,), os=(os,)), matrix)
    return resolve(cell, matrix, FACTS)
