"""What there is of a cell: by its answer, its lock, and the reports that are kept of its image."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests import reports
from torchkiln.gate.cell_state import CellRecord, State, saw_gpus, state, why_unavailable
from torchkiln.matrix import facts, matrix
from torchkiln.matrix.explain import needs
from torchkiln.matrix.policy import Policy
from torchkiln.matrix.resolve import resolve
from torchkiln.model.cell import Cell, Resolution
from torchkiln.model.digest import Flavor
from torchkiln.model.report import SignedReport
from torchkiln.util.places import ROOT

FACTS = facts.load()
MATRIX = matrix.read(ROOT / "matrix.yaml", FACTS)
POLICY = Policy(signed=False, strangers=True)
PROOF = reports.signed_report(reports.report(), "a.dsse.json")
ALONE = replace(PROOF, report=replace(PROOF.report, host=json.dumps({})))
OF_ANOTHER = replace(PROOF, report=replace(PROOF.report, image=reports.OTHER))


def answer(torch: str, cuda: str, flavor: Flavor = "runtime", os: str = "debian12") -> Resolution:
    python = next(one.python for one in MATRIX.os if one.name == os)
    return resolve(Cell(torch=torch, cuda=cuda, flavor=flavor, os=os, python=python), MATRIX, FACTS)


def of(*known: SignedReport, image: bool = True) -> State:
    """The state of the cell of which the reports are."""
    kept = CellRecord(locked=reports.LOCKED, image=reports.IMAGE if image else None, reports=known)
    return state(reports.LOCKED.resolution, kept, POLICY, reports.SUITE)


def test_with_a_lock_the_reports_decide() -> None:
    assert of(PROOF) is State.PROVED
    assert of(ALONE, PROOF) is State.PROVED
    assert of(ALONE) is State.BUILT
    assert of() is State.LOCKED


def test_a_report_of_another_image_says_nothing_of_this_one() -> None:
    assert of(OF_ANOTHER) is State.LOCKED
    assert of(PROOF, image=False) is State.LOCKED
    assert of(ALONE, OF_ANOTHER) is State.BUILT


def test_what_the_gate_refuses_was_built_and_not_proved() -> None:
    part = replace(PROOF, report=replace(PROOF.report, findings=PROOF.report.findings[:2]))
    unproved = replace(PROOF, report=replace(PROOF.report, suite=reports.OTHER))

    assert saw_gpus(part)
    assert of(part) is State.BUILT
    assert of(unproved) is State.BUILT


@pytest.mark.parametrize(
    ("cell", "expected", "wanted"),
    [
        (("2.7.1", "12.1"), State.LOCKABLE, ()),
        (("2.7.1", "11.8"), State.ELSEWHERE, ("PyTorch's own index",)),
        (("2.7.1", "12.1", "runtime", "ubuntu22.04"), State.ELSEWHERE, ("the archive of ubuntu22.04",)),
        (
            ("2.7.1", "11.8", "runtime", "ubuntu22.04"),
            State.ELSEWHERE,
            ("PyTorch's own index", "the archive of ubuntu22.04"),
        ),
    ],
)
def test_without_a_lock_it_is_what_locking_asks_for(
    cell: tuple[str, ...], expected: State, wanted: tuple[str, ...]
) -> None:
    told = answer(*cell)  # type: ignore[arg-type]
    assert needs(told) == wanted
    assert state(told, None, POLICY, reports.SUITE) is expected


def test_what_cannot_be_had_is_that_whatever_is_kept() -> None:
    told = answer("2.8.0", "11.7")
    kept = CellRecord(locked=reports.LOCKED, image=reports.IMAGE, reports=(PROOF,))

    assert why_unavailable(told).endswith("torch 2.8 has no CUDA 11 build; the last is 2.7.1")
    assert state(told, None, POLICY, reports.SUITE) is State.UNAVAILABLE
    assert state(told, kept, POLICY, reports.SUITE) is State.UNAVAILABLE


def test_an_untrusted_lock_counts_as_none() -> None:
    """Whatever ran in what came of it."""
    for locked in (
        replace(reports.LOCKED, untrusted=True),
        replace(reports.LOCKED, base=replace(reports.LOCKED.base, untrusted=True)),
    ):
        kept = CellRecord(locked=locked, image=reports.IMAGE, reports=(PROOF,))
        assert state(locked.resolution, kept, POLICY, reports.SUITE) is State.LOCKABLE
