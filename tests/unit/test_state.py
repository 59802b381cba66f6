"""The state of a cell, and the reuse of a stored report instead of a run."""

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
POLICY = Policy(signed=False, accept_unsigned=True)
PROOF = reports.signed_report(reports.report(), "a.dsse.json")
ALONE = replace(PROOF, report=replace(PROOF.report, host=json.dumps({})))
OF_ANOTHER = replace(PROOF, report=replace(PROOF.report, image=reports.OTHER))


def answer(torch: str, cuda: str, flavor: Flavor = "runtime", os: str = "debian12") -> Resolution:
    python = next(system.python for system in MATRIX.os if system.name == os)
    return resolve(Cell(torch=torch, cuda=cuda, flavor=flavor, os=os, python=python), MATRIX, FACTS)


def of(*known: SignedReport, image: bool = True) -> State:
    """The state of a cell with the reports *known*; with *image*, its digest can be predicted."""
    record = CellRecord(locked=reports.LOCKED, image=reports.IMAGE if image else None, reports=known)
    return state(reports.LOCKED.resolution, record, POLICY, reports.SUITE)


def test_with_a_lock_the_state_follows_the_reports() -> None:
    assert of(PROOF) is State.PROVED
    assert of(ALONE, PROOF) is State.PROVED
    assert of(ALONE) is State.BUILT
    assert of() is State.LOCKED


def test_reports_of_the_host_that_built_it_complete_those_of_gpus() -> None:
    """A bundle has no wheels, so on a GPU host the check that needs them is skipped."""
    skipped = reports.found("import", "skipped", "a bundle has no wheels")
    on_gpus = replace(PROOF, report=reports.report(skipped))
    here = {"host": json.dumps(reports.host()), "findings": (reports.found("import"),)}
    alone = replace(PROOF, name="b.json", report=replace(PROOF.report, **here))
    assert of(on_gpus) is of(alone) is State.BUILT
    assert of(on_gpus, alone) is State.PROVED


def test_a_report_of_another_image_does_not_count() -> None:
    assert of(OF_ANOTHER) is State.LOCKED
    assert of(PROOF, image=False) is State.LOCKED
    assert of(ALONE, OF_ANOTHER) is State.BUILT


def test_an_image_refused_by_the_gate_is_built_but_not_proved() -> None:
    part = replace(PROOF, report=replace(PROOF.report, findings=PROOF.report.findings[:2]))
    unproved = replace(PROOF, report=replace(PROOF.report, suite=reports.OTHER))

    assert saw_gpus(part)
    assert of(part) is State.BUILT
    assert of(unproved) is State.BUILT


@pytest.mark.parametrize(
    ("cell", "expected", "requirements"),
    [
        (("2.7.1", "12.1"), State.LOCKABLE, ()),
        (("2.7.1", "11.8"), State.ELSEWHERE, ("PyTorch's own index",)),
        (("2.7.1", "12.1", "runtime", "debian13"), State.LOCKABLE, ()),
        (("2.7.1", "12.1", "runtime", "ubuntu22.04"), State.ELSEWHERE, ("the archive of ubuntu22.04",)),
        (
            ("2.7.1", "11.8", "runtime", "ubuntu22.04"),
            State.ELSEWHERE,
            ("PyTorch's own index", "the archive of ubuntu22.04"),
        ),
    ],
)
def test_without_a_lock_the_state_has_the_requirements_of_locking(
    cell: tuple[str, ...], expected: State, requirements: tuple[str, ...]
) -> None:
    resolved = answer(*cell)  # type: ignore[arg-type]
    assert needs(resolved) == requirements
    assert state(resolved, None, POLICY, reports.SUITE) is expected


def test_an_unavailable_cell_is_unavailable_with_any_reports() -> None:
    resolved = answer("2.8.0", "11.7")
    record = CellRecord(locked=reports.LOCKED, image=reports.IMAGE, reports=(PROOF,))

    assert why_unavailable(resolved).endswith("torch 2.8 has no CUDA 11 build; the last is 2.7.1")
    assert state(resolved, None, POLICY, reports.SUITE) is State.UNAVAILABLE
    assert state(resolved, record, POLICY, reports.SUITE) is State.UNAVAILABLE


def test_an_untrusted_lock_counts_as_none() -> None:
    """The cell is not locked, even if there are reports of its image."""
    for locked in (
        replace(reports.LOCKED, untrusted=True),
        replace(reports.LOCKED, base=replace(reports.LOCKED.base, untrusted=True)),
    ):
        record = CellRecord(locked=locked, image=reports.IMAGE, reports=(PROOF,))
        assert state(locked.resolution, record, POLICY, reports.SUITE) is State.LOCKABLE


AT = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)


def report(**changes: Any) -> SmokeReport:
    """A report, an hour old, in which all checks passed on two H200 GPUs."""
    return replace(reports.report(when="2026-11-22T11:00:00Z"), **changes)


def question(**changes: Any) -> Question:
    resolved = report()
    assert resolved.image
    stored_question = Question(
        image=resolved.image,
        suite=resolved.suite,
        runtime=resolved.runtime,
        gpus=("NVIDIA H200", "NVIDIA H200"),
        checks=frozenset({"import"}),
    )
    return replace(stored_question, **changes)


def test_an_identical_run_is_reused() -> None:
    """The newest report is reused, even if it contains additional checks."""
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
def test_a_different_run_is_not_reused(changes: dict[str, Any]) -> None:
    assert reusable_report([report()], question(**changes), at=AT, days=1) is None


def failed(resolved: SmokeReport) -> tuple[Finding, ...]:
    return (replace(resolved.findings[0], outcome="failed"), *resolved.findings[1:])


def test_a_later_failed_run_prevents_the_reuse_of_an_earlier_one() -> None:
    """The failed run may have fewer checks. A failed run before the passed run does not matter."""
    passed, resolved = report(), report(when="2026-11-22T11:30:00Z")
    worse = replace(resolved, findings=failed(resolved)[:1], verdict="fail")

    assert reusable_report([passed, worse], question(), at=AT, days=1) is None
    assert (
        reusable_report([replace(worse, when="2026-11-22T10:00:00Z"), passed], question(), at=AT, days=1)
        is passed
    )
    of_another_image = replace(worse, image=Digest("sha256:" + "1" * 64))
    assert reusable_report([passed, of_another_image], question(), at=AT, days=1) is passed


@pytest.mark.parametrize("when", [None, "yesterday", "2026-11-22T12:00:01Z", "2026-11-21T11:59:59Z"])
def test_a_report_of_another_time_is_not_reused(when: str | None) -> None:
    """Its time is too long ago, in the future, or invalid."""
    assert reusable_report([replace(report(), when=when)], question(), at=AT, days=1) is None
    assert reusable_report([report()], question(), at=AT + timedelta(hours=23), days=1) is not None
    assert reusable_report([report()], question(), at=AT, days=0) is None


def test_gpu_models_of_a_host(tmp_path: Path) -> None:
    """NVIDIA's kernel module lists them in /proc."""
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        place = tmp_path / "proc/driver/nvidia/gpus" / bus
        place.mkdir(parents=True)
        (place / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 45\nGPU UUID: \t GPU-1\n")

    assert models(tmp_path) == ("NVIDIA H200", "NVIDIA H200")
    assert models(tmp_path / "dev") == ()


@pytest.mark.parametrize(
    ("names", "nodes", "stored_question"),
    [(("NVIDIA H200", "NVIDIA H200"), 2, True), (("NVIDIA H200", "NVIDIA H200"), 1, False), ((), 1, False)],
)
def test_with_unknown_gpus_nothing_is_reused(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], nodes: int, stored_question: bool
) -> None:
    """A container may have only some of the host's GPUs, or the kernel module may be unknown."""
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
    smoke_request = SmokeRequest(checks=Checks(suite=reports.SUITE))
    of_somebody = replace(smoke_request, checks=replace(smoke_request.checks, nonce="a-nonce-of-ours"))

    assert (_question(image, smoke_request) is not None) is stored_question
    assert _question(image, replace(smoke_request, force=True)) is None
    assert _question(image, of_somebody) is None
