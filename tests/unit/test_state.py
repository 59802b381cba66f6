"""What there is of a cell, and when a kept report replaces a run."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests import reports
from torchkiln.gate.cell_state import CellRecord, State, saw_gpus, state, why_unavailable
from torchkiln.matrix import facts, matrix
from torchkiln.matrix.explain import needs
from torchkiln.matrix.policy import Policy
from torchkiln.matrix.resolve import resolve
from torchkiln.model.cell import Cell, Resolution
from torchkiln.model.digest import Digest, Flavor
from torchkiln.model.report import Finding, SignedReport, SmokeReport
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.runtimes import driver
from torchkiln.runtimes.driver import HostDriver, models
from torchkiln.smoke.reuse import Question, key_of, reusable_report
from torchkiln.smoke.run import Checks
from torchkiln.smoke.session import SmokeRequest, _question
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


AT = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)


def report(**changes: Any) -> SmokeReport:
    """Everything passed on two H200 an hour ago."""
    return replace(reports.report(when="2026-11-22T11:00:00Z"), **changes)


def question(**changes: Any) -> Question:
    told = report()
    assert told.image
    asked = Question(
        image=told.image,
        suite=told.suite,
        runtime=told.runtime,
        gpus=("NVIDIA H200", "NVIDIA H200"),
        checks=frozenset({"import"}),
    )
    return replace(asked, **changes)


def test_a_run_that_would_be_the_same_is_answered() -> None:
    """By the youngest, whatever else ran with it."""
    older, younger = report(), report(when="2026-11-22T11:30:00Z")

    assert reusable_report([younger, older], question(), at=AT, days=1) is younger
    assert reusable_report([], question(), at=AT, days=1) is None
    assert key_of(older) == key_of(younger)


@pytest.mark.parametrize(
    "changes",
    [
        {"image": Digest("sha256:" + "1" * 64)},
        {"suite": Digest("sha256:" + "2" * 64)},
        {"runtime": "docker"},
        {"gpus": ("NVIDIA H200",)},
        {"gpus": ("NVIDIA H200", "NVIDIA H100")},
        {"gpus": ()},
        {"checks": frozenset({"import", "other"})},
    ],
)
def test_another_question_is_not(changes: dict[str, Any]) -> None:
    assert reusable_report([report()], question(**changes), at=AT, days=1) is None


def failed(told: SmokeReport) -> tuple[Finding, ...]:
    return (replace(told.findings[0], outcome="failed"), *told.findings[1:])


def test_what_did_not_pass_is_no_answer() -> None:
    """Whatever the report states."""
    told = report()
    assert reusable_report([replace(told, verdict="inconclusive")], question(), at=AT, days=1) is None
    assert reusable_report([replace(told, findings=failed(told))], question(), at=AT, days=1) is None


def test_a_later_run_that_failed_speaks_against_an_earlier_one() -> None:
    """Though it asked for less; an earlier failure is made good."""
    passed, told = report(), report(when="2026-11-22T11:30:00Z")
    worse = replace(told, findings=failed(told)[:1], verdict="fail")

    assert reusable_report([passed, worse], question(), at=AT, days=1) is None
    assert (
        reusable_report([replace(worse, when="2026-11-22T10:00:00Z"), passed], question(), at=AT, days=1)
        is passed
    )
    other = replace(worse, image=Digest("sha256:" + "1" * 64))
    assert reusable_report([passed, other], question(), at=AT, days=1) is passed


@pytest.mark.parametrize("when", [None, "yesterday", "2026-11-22T12:00:01Z", "2026-11-21T11:59:59Z"])
def test_nor_is_one_of_another_time(when: str | None) -> None:
    """Too old, of the future, or of no known time."""
    assert reusable_report([replace(report(), when=when)], question(), at=AT, days=1) is None
    assert reusable_report([report()], question(), at=AT + timedelta(hours=23), days=1) is not None
    assert reusable_report([report()], question(), at=AT, days=0) is None


def test_a_hosts_models(tmp_path: Path) -> None:
    """As the kernel module lists them."""
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        place = tmp_path / "proc/driver/nvidia/gpus" / bus
        place.mkdir(parents=True)
        (place / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 45\nGPU UUID: \t GPU-1\n")

    assert models(tmp_path) == ("NVIDIA H200", "NVIDIA H200")
    assert models(tmp_path / "dev") == ()


@pytest.mark.parametrize(
    ("names", "nodes", "asked"),
    [
        (("NVIDIA H200", "NVIDIA H200"), 2, True),
        (("NVIDIA H200", "NVIDIA H200"), 1, False),
        ((), 1, False),
    ],
)
def test_where_nobody_knows_the_gpus_nothing_is_asked(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], nodes: int, asked: bool
) -> None:
    """A container with some of a host's GPUs, or a kernel module that does not tell: the checks run."""
    handed = tuple((f"nvidia{at}", Path("/dev/null")) for at in range(nodes))
    monkeypatch.setattr(driver, "driver_for", lambda *_: HostDriver(nodes=handed, libraries=(), tools=()))
    monkeypatch.setattr(driver, "models", lambda: names)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    image = ImageOnDisk(
        ref="x",
        manifest=reports.IMAGE,
        manifest_path=Path(),
        config_digest=reports.IMAGE,
        config_path=Path(),
        config={},
        layers=(),
    )
    asked_for = SmokeRequest(checks=Checks(suite=reports.SUITE))
    of_somebody = replace(asked_for, checks=replace(asked_for.checks, nonce="a-nonce-of-ours"))

    assert (_question(image, asked_for) is not None) is asked
    assert _question(image, replace(asked_for, force=True)) is None
    assert _question(image, of_somebody) is None
