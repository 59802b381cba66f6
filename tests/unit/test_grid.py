"""The text of a cell in docs/grid.md depends on its lock and its committed reports."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from tests import reports
from tools import grid, kept
from tools.grid import ReportSummary, Square
from tools.kept import IMAGES, PROOFS, proofs
from torchkiln.engine.known import predicted_digest
from torchkiln.gate import check_status
from torchkiln.gate.cell_state import State
from torchkiln.matrix import facts, matrix
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import Selection, select
from torchkiln.model.cell import Source
from torchkiln.model.digest import Digest
from torchkiln.model.report import SignedReport
from torchkiln.plan.load import plan_cell
from torchkiln.smoke.suite import Suite, load_suite
from torchkiln.util.places import ROOT

FACTS = facts.load()
MATRIX = matrix.read(ROOT / "matrix.yaml", FACTS)
CELLS = {(cell.torch, cell.cuda): cell for cell in select(Selection(), MATRIX)}
IMAGE, BEFORE = Digest("sha256:" + "ab" * 32), Digest("sha256:" + "cd" * 32)


def square(torch: str, cuda: str, state: State, **more: object) -> str:
    answer = resolve(CELLS[torch, cuda], MATRIX, FACTS)
    return replace(Square(answer=answer, state=state), **more).text()


def locked(**more: object) -> str:
    """The text of a locked cell, without its first line (native or minor-compat)."""
    return square("2.3.1", "12.1", State.LOCKED, **more).partition("<br>")[2]


# The images of cells in the grid whose reports include nccl-all-reduce, which needs two GPUs and which the
# matrix's policy requires. The grid has no thin images.
_ON_TWO = {
    (proof.report.tag, proof.report.image)
    for proof in proofs(PROOFS)
    if (IMAGES / (proof.report.tag or "") / "image.json").exists()
    and any(finding.id == "nccl-all-reduce" for finding in proof.report.findings)
}
_OF_TAG = {
    tag: [
        proof
        for proof in proofs(PROOFS)
        if proof.report.tag == tag and (tag, proof.report.image) in _ON_TWO and proof.report.verdict == "pass"
    ]
    for tag in sorted({tag for tag, _ in _ON_TWO}, key=str)
}
# Of several images of a tag, only the one that ran last: the tests below make them one image, with one lock.
PASSED = [proof for of_tag in _OF_TAG.values() for proof in kept.latest_earlier(of_tag, None)]
RUNTIME = {item.report.tag for item in PASSED if (item.report.tag or "").endswith("-runtime")}
WHERE = "2 × NVIDIA H200, [2026-11-21](proofs/a-h200x2.dsse.json), `abababababab`"
PARTIAL = reports.signed_report(reports.report(), "a-h200x2.dsse.json")
SKIPPED = replace(PARTIAL.report.findings[0], id="busbw", tier=2, outcome="skipped")
SKIPPING = replace(PARTIAL, report=replace(PARTIAL.report, findings=(*PARTIAL.report.findings, SKIPPED)))
ALONE = replace(PARTIAL, name="c-tier0.json", report=replace(PARTIAL.report, host=json.dumps({}), when=None))
WITHOUT = "without a GPU, [report](proofs/c-tier0.json), `abababababab`"
WRONG = replace(PARTIAL.report.findings[0], outcome="failed")
FAILED = replace(
    PARTIAL,
    name="b.dsse.json",
    report=replace(PARTIAL.report, verdict="fail", findings=(WRONG,), image=BEFORE),
)


def summary_of(*report_text: SignedReport, proved: bool = False) -> ReportSummary:
    return ReportSummary(reports=report_text, proved=proved)


def test_each_state_has_a_text() -> None:
    assert square("2.8.0", "11.7", State.UNAVAILABLE) == "unavailable"
    assert square("2.7.1", "11.8", State.ELSEWHERE) == "native, lockable elsewhere ¹"
    assert square("2.7.1", "11.8", State.ELSEWHERE, recorded=True) == "native, lockable elsewhere ¹ ²"
    assert square("2.3.1", "12.1", State.LOCKABLE) == "native, lockable"
    assert square("2.3.1", "12.1", State.LOCKED) == "**native**<br>locked"
    assert locked(now=summary_of(ALONE)) == "built; 6 checks passed " + WITHOUT
    assert locked(now=summary_of(PARTIAL, proved=True)) == f"built and proved on {WHERE}"
    assert locked(now=summary_of(ALONE, proved=True)) == "built and proved; 6 checks passed " + WITHOUT
    assert locked(now=summary_of(PARTIAL)) == f"built; 6 checks passed on {WHERE}"
    assert locked(now=summary_of(SKIPPING)) == f"built; 6 checks passed (skipped: 1 of tier 2) on {WHERE}"


def test_results_of_an_earlier_image_are_not_shown_for_the_present_one() -> None:
    """The mark for the same GPU stack is written only if the stacks were compared."""
    ours = "an earlier image³"

    assert (
        locked(earlier=summary_of(PARTIAL, proved=True)) == f"locked; an earlier image was proved on {WHERE}"
    )
    assert locked(earlier=summary_of(PARTIAL)) == f"locked; in an earlier image 6 checks passed on {WHERE}"
    assert (
        locked(earlier=summary_of(PARTIAL, proved=True), same_stack=True)
        == f"locked; {ours} was proved on {WHERE}"
    )


def test_a_failed_report_is_shown_even_if_others_passed() -> None:
    """The failed check is named, even if a newer report of the same image contains more checks."""
    report_text = f"`{WRONG.id}` failed on 2 × NVIDIA H200, [2026-11-21](proofs/b.dsse.json), `cdcdcdcdcdcd`"

    assert locked(now=summary_of(FAILED, PARTIAL)) == f"built; {report_text}"
    assert locked(earlier=summary_of(FAILED, PARTIAL)) == f"locked; in an earlier image {report_text}"


def test_an_earlier_image_is_shown_until_a_report_of_the_present_one_passed() -> None:
    before = summary_of(FAILED)

    assert "earlier" not in locked(now=summary_of(PARTIAL), earlier=before)
    assert locked(now=summary_of(FAILED), earlier=summary_of(PARTIAL, proved=True)).endswith(
        f"`cdcdcdcdcdcd`; an earlier image was proved on {WHERE}"
    )
    # A report without a GPU proves less than the earlier reports.
    assert locked(now=summary_of(ALONE), earlier=summary_of(PARTIAL, proved=True)).endswith(
        f"`abababababab`; an earlier image was proved on {WHERE}"
    )
    assert "earlier" not in locked(now=summary_of(ALONE), earlier=summary_of(ALONE))


def test_of_several_earlier_images_the_latest_is_shown() -> None:
    def ran(image: Digest, when: str) -> SignedReport:
        return replace(PARTIAL, report=replace(PARTIAL.report, image=image, when=when))

    last = [ran(BEFORE, "2026-11-20T00:00:00Z"), ran(BEFORE, "2026-11-18T00:00:00Z")]
    older = [ran(Digest("sha256:" + "12" * 32), f"2026-11-{day}T00:00:00Z") for day in (17, 19)]

    assert kept.latest_earlier([*older, *last, PARTIAL], IMAGE) == last
    assert kept.latest_earlier([PARTIAL], IMAGE) == []


LOCKS = sum(b'"by_record"' not in path.read_bytes() for path in IMAGES.glob("*-runtime/lock.json"))


@pytest.fixture(autouse=True)
def nothing_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "without_gpus", lambda folder: [])


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> Suite:
    """The suite, reduced to the checks that all committed reports contain: a new check breaks no test."""
    ran: dict[str | None, set[str]] = {}
    for item in PASSED:
        ran.setdefault(item.report.tag, set()).update(finding.id for finding in item.report.findings)
    full_suite, all_ran = load_suite(ROOT / "smoke_tests"), set.intersection(*ran.values())
    known = replace(full_suite, checks=tuple(check for check in full_suite.checks if check.id in all_ran))
    # These reports were made by earlier suites, which declared other values.
    monkeypatch.setattr(check_status, "declared_faults", lambda *_: ())
    monkeypatch.setattr(grid, "load_suite", lambda folder: known)
    return known


def as_of(one: SignedReport, image: Digest | None, suite: Suite) -> SignedReport:
    """The committed report *one*, changed to be of *image* and *suite* and of the committed image.json."""
    account = (IMAGES / (one.report.tag or "") / "image.json").read_bytes()
    host = json.loads(one.report.host) | {"image_json_sha256": hashlib.sha256(account).hexdigest()}
    return replace(one, report=replace(one.report, image=image, suite=suite.digest, host=json.dumps(host)))


def test_the_grid_with_reports_of_the_present_images(monkeypatch: pytest.MonkeyPatch, suite: Suite) -> None:
    now = [as_of(item, kept.present(item.report.tag or ""), suite) for item in PASSED]
    monkeypatch.setattr(grid, "proofs", lambda folder: now)
    report_text = grid.grid()

    assert report_text.count("<br>built and proved on ") == len({item.report.tag for item in PASSED})
    assert "earlier image³" not in report_text
    assert f"unavailable. {len(RUNTIME)} built and proved, " in report_text
    assert "devel on debian12: 1 built and proved, " in report_text
    assert "; 0 proved in an earlier image." in report_text


def test_the_grid_with_the_same_reports_of_other_images(
    monkeypatch: pytest.MonkeyPatch, suite: Suite
) -> None:
    """No present image counts as proved; each runtime image is shown as proved in an earlier image."""
    before = [as_of(item, BEFORE, suite) for item in PASSED]
    monkeypatch.setattr(grid, "proofs", lambda folder: before)
    report_text, proved = grid.grid(), len(RUNTIME)

    assert "<br>built" not in report_text
    assert report_text.count("earlier image³ was proved on ") == proved > 0
    assert f" {LOCKS} locked, " in report_text
    assert f"; {proved} proved in an earlier image." in report_text


def test_an_earlier_image_that_the_gate_would_refuse_does_not_count(
    monkeypatch: pytest.MonkeyPatch, suite: Suite
) -> None:
    """One report lacks its last checks; another has values that contradict its verdict."""
    for spoil in (lambda found: found[:-9], lambda found: [replace(item, measured="{}") for item in found]):
        before = [
            replace(one, report=replace(one.report, findings=tuple(spoil(one.report.findings))))
            for one in (as_of(item, BEFORE, suite) for item in PASSED)
        ]
        monkeypatch.setattr(grid, "proofs", lambda folder, report_text=before: report_text)
        text = grid.grid()

        assert "was proved on" not in text
        assert "; 0 proved in an earlier image." in text


def test_without_recorded_layers_no_digest_is_predicted() -> None:
    plan = plan_cell(CELLS["2.7.1", "12.1"], MATRIX, FACTS, images=IMAGES)
    assert plan.locked.resolution.build
    assert plan.locked.resolution.build.source is Source.DEFAULT

    assert predicted_digest(plan)
    assert predicted_digest(replace(plan, locked=replace(plan.locked, layers=plan.locked.layers[1:]))) is None
