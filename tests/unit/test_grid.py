"""What the grid in README.md says of a cell, by what its lock gives and what reports are kept of that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests import reports
from tools import grid
from tools.grid import IMAGES, PROOFS, Square, proofs
from torchkiln import facts, matrix
from torchkiln.foretold import foretold
from torchkiln.nouns import Digest, Source
from torchkiln.places import ROOT
from torchkiln.planning import plan_cell
from torchkiln.resolve import resolve
from torchkiln.select import Selection, select

FACTS = facts.load()
MATRIX = matrix.read(ROOT / "matrix.yaml", FACTS)
CELLS = {(cell.torch, cell.cuda): cell for cell in select(Selection(), MATRIX)}
IMAGE = Digest("sha256:" + "ab" * 32)


def square(torch: str, cuda: str, **more: object) -> str:
    return replace(Square(answer=resolve(CELLS[torch, cuda], MATRIX, FACTS)), **more).text()


def test_each_state_has_its_words() -> None:
    told = reports.witness(reports.report(), "a-h200x2.dsse.json")

    assert square("2.8.0", "11.7") == "unavailable"
    assert square("2.7.1", "11.8") == "native, lockable elsewhere ¹"
    assert square("2.3.1", "12.1", digest=IMAGE) == "**native**<br>built"
    assert (
        square("2.3.1", "12.1", digest=IMAGE, reports=[told], proved=True)
        == "**native**<br>proved on 2 × NVIDIA H200, [2026-11-21](docs/proofs/a-h200x2.json), `abababababab`"
    )
    assert "built; not all checks ran, but passed, on 2 ×" in square(
        "2.3.1", "12.1", digest=IMAGE, reports=[told]
    )


def test_one_that_failed_is_told_whatever_passed() -> None:
    """With the check's name, though another report of the same image has more checks and is younger."""
    passed = reports.witness(reports.report(), "a.dsse.json")
    wrong = replace(passed.report.findings[0], outcome="failed")
    failed = replace(
        passed, name="b.dsse.json", report=replace(passed.report, verdict="fail", findings=(wrong,))
    )

    assert f"built; `{wrong.id}` failed on 2 × NVIDIA H200, [2026-11-21](docs/proofs/b.json)" in square(
        "2.3.1", "12.1", digest=IMAGE, reports=[failed, passed]
    )


def test_a_report_of_another_image_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the kept ones some cell is proved; with the same of another digest none."""
    known = proofs(PROOFS)
    assert known
    moved = [replace(one, report=replace(one.report, image=IMAGE)) for one in known]
    monkeypatch.setattr(grid, "proofs", lambda folder: moved)

    assert "proved on NVIDIA" not in grid.grid()
    assert "0 of them proved" in grid.grid()


def test_without_recorded_layers_nothing_is_foretold() -> None:
    plan = plan_cell(CELLS["2.7.1", "12.1"], MATRIX, FACTS, images=IMAGES)
    assert plan.locked.resolution.build
    assert plan.locked.resolution.build.source is Source.DEFAULT

    assert foretold(plan)
    assert foretold(replace(plan, locked=replace(plan.locked, layers=plan.locked.layers[1:]))) is None
