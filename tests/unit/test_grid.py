"""What the grid in README.md says of a cell, by what its lock gives and what reports are kept of that."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace

import pytest

from tests import reports
from tools import grid, kept
from tools.grid import ReportSummary, Square
from tools.kept import IMAGES, PROOFS, proofs
from torchkiln.build.predicted_digest import predicted_digest
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
    """What is told of a cell with a lock, behind its kind."""
    return square("2.3.1", "12.1", State.LOCKED, **more).partition("<br>")[2]


# Of tags that ran on two GPUs: the matrix's policy asks for NCCL.
_ON_TWO = {
    one.report.tag
    for one in proofs(PROOFS)
    if any(finding.id == "nccl-all-reduce" for finding in one.report.findings)
}
PASSED = [one for one in proofs(PROOFS) if one.report.verdict == "pass" and one.report.tag in _ON_TWO]
RUNTIME = {one.report.tag for one in PASSED if (one.report.tag or "").endswith("-runtime")}
WHERE = "2 × NVIDIA H200, [2026-11-21](docs/proofs/a-h200x2.dsse.json), `abababababab`"
TOLD = reports.signed_report(reports.report(), "a-h200x2.dsse.json")
ALONE = replace(
    TOLD,
    name="c-tier0.json",
    report=replace(TOLD.report, host=json.dumps({}), when=None),
)
WITHOUT = "without a GPU, [report](docs/proofs/c-tier0.json), `abababababab`"
WRONG = replace(TOLD.report.findings[0], outcome="failed")
FAILED = replace(
    TOLD, name="b.dsse.json", report=replace(TOLD.report, verdict="fail", findings=(WRONG,), image=BEFORE)
)


def seen(*told: SignedReport, proved: bool = False) -> ReportSummary:
    return ReportSummary(reports=told, proved=proved)


def test_each_state_has_its_words() -> None:
    assert square("2.8.0", "11.7", State.UNAVAILABLE) == "unavailable"
    assert square("2.7.1", "11.8", State.ELSEWHERE) == "native, lockable elsewhere ¹"
    assert square("2.7.1", "11.8", State.ELSEWHERE, recorded=True) == "native, lockable elsewhere ¹ ²"
    assert square("2.3.1", "12.1", State.LOCKABLE) == "native, lockable"
    assert square("2.3.1", "12.1", State.LOCKED) == "**native**<br>locked"
    assert locked(now=seen(ALONE)) == "built; 6 checks passed " + WITHOUT
    assert locked(now=seen(TOLD, proved=True)) == f"built and proved on {WHERE}"
    assert locked(now=seen(TOLD)) == f"built; some of the required checks ran and passed on {WHERE}"


def test_an_earlier_image_is_called_so_and_nothing_of_it_is_said_of_the_present_one() -> None:
    """That it had the same packages only where that is known."""
    ours = "an earlier image with the same packages"

    assert locked(earlier=seen(TOLD, proved=True)) == f"locked; an earlier image was proved on {WHERE}"
    assert (
        locked(earlier=seen(TOLD))
        == f"locked; in an earlier image some of the required checks ran and passed on {WHERE}"
    )
    assert (
        locked(earlier=seen(TOLD, proved=True), same_packages=True) == f"locked; {ours} was proved on {WHERE}"
    )


def test_one_that_failed_is_told_whatever_passed() -> None:
    """With the check's name, though another report of the same image has more checks and is younger."""
    told = f"`{WRONG.id}` failed on 2 × NVIDIA H200, [2026-11-21](docs/proofs/b.dsse.json), `cdcdcdcdcdcd`"

    assert locked(now=seen(FAILED, TOLD)) == f"built; {told}"
    assert locked(earlier=seen(FAILED, TOLD)) == f"locked; in an earlier image {told}"


def test_an_earlier_image_is_told_of_until_something_passed_in_the_present_one() -> None:
    before = seen(FAILED)

    assert "earlier" not in locked(now=seen(TOLD), earlier=before)
    assert locked(now=seen(FAILED), earlier=seen(TOLD, proved=True)).endswith(
        f"`cdcdcdcdcdcd`; an earlier image was proved on {WHERE}"
    )
    # Checks without a GPU are less than what was proved before.
    assert locked(now=seen(ALONE), earlier=seen(TOLD, proved=True)).endswith(
        f"`abababababab`; an earlier image was proved on {WHERE}"
    )
    assert "earlier" not in locked(now=seen(ALONE), earlier=seen(ALONE))


def test_of_several_earlier_images_the_last_that_ran_is_told() -> None:
    def ran(image: Digest, when: str) -> SignedReport:
        return replace(TOLD, report=replace(TOLD.report, image=image, when=when))

    last = [ran(BEFORE, "2026-11-20T00:00:00Z"), ran(BEFORE, "2026-11-18T00:00:00Z")]
    older = [ran(Digest("sha256:" + "12" * 32), f"2026-11-{day}T00:00:00Z") for day in (17, 19)]

    assert kept.latest_earlier([*older, *last, TOLD], IMAGE) == last
    assert kept.latest_earlier([TOLD], IMAGE) == []


def test_the_same_packages_are_those_that_the_check_lock_found_installed() -> None:
    """By name and version; without that check the answer is no."""
    installed = {wheel.name: wheel.version for wheel in reports.LOCKED.wheels}

    def measured(values: dict[str, str]) -> SignedReport:
        finding = replace(TOLD.report.findings[0], id="lock", measured=json.dumps({"installed": values}))
        return replace(TOLD, report=replace(TOLD.report, findings=(finding,)))

    assert kept.same_packages([TOLD, measured(installed)], reports.LOCKED)
    assert not kept.same_packages([measured(installed | {"numpy": "0.1"})], reports.LOCKED)
    assert not kept.same_packages([measured({})], reports.LOCKED)
    assert not kept.same_packages([TOLD], reports.LOCKED)
    assert not kept.same_packages([], reports.LOCKED)


LOCKS = sum(b'"by_record"' not in path.read_bytes() for path in IMAGES.glob("*-runtime/lock.json"))


@pytest.fixture(autouse=True)
def nothing_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "without_gpus", lambda folder: [])


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> Suite:
    """As it is, less what kept reports lack: a check that is newer than they must not turn a test red."""
    ran: dict[str | None, set[str]] = {}
    for one in PASSED:
        ran.setdefault(one.report.tag, set()).update(finding.id for finding in one.report.findings)
    whole, all_ran = load_suite(ROOT / "smoke_tests"), set.intersection(*ran.values())
    known = replace(whole, checks=tuple(check for check in whole.checks if check.id in all_ran))
    monkeypatch.setattr(grid, "load_suite", lambda folder: known)
    return known


def as_of(one: SignedReport, image: Digest | None, suite: Suite) -> SignedReport:
    """As if the kept report *one* had been made of *image* by *suite*, in what its lock gives."""
    account = (IMAGES / (one.report.tag or "") / "image.json").read_bytes()
    host = json.loads(one.report.host) | {"image_json_sha256": hashlib.sha256(account).hexdigest()}
    return replace(one, report=replace(one.report, image=image, suite=suite.digest, host=json.dumps(host)))


def test_the_whole_grid_with_reports_of_the_present_images(
    monkeypatch: pytest.MonkeyPatch, suite: Suite
) -> None:
    now = [as_of(one, kept.present(one.report.tag or ""), suite) for one in PASSED]
    monkeypatch.setattr(grid, "proofs", lambda folder: now)
    told = grid.grid()

    assert told.count("<br>built and proved on ") == len({one.report.tag for one in PASSED})
    assert "earlier image with" not in told
    assert f"unavailable. {len(RUNTIME)} built and proved, " in told
    assert "devel on debian12: 1 built and proved, " in told
    assert "; 0 proved in an earlier image." in told


def test_the_whole_grid_with_the_same_reports_of_other_images(
    monkeypatch: pytest.MonkeyPatch, suite: Suite
) -> None:
    """Nothing is proved any more; what was is told as that, by the same count of runtime images."""
    before = [as_of(one, BEFORE, suite) for one in PASSED]
    monkeypatch.setattr(grid, "proofs", lambda folder: before)
    told, proved = grid.grid(), len(RUNTIME)

    assert "<br>built" not in told
    assert told.count("earlier image with the same packages was proved on ") == proved > 0
    assert f" {LOCKS} locked, " in told
    assert f"; {proved} proved in an earlier image." in told


def test_the_whole_grid_with_reports_of_other_images_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [
        replace(
            one,
            report=replace(
                one.report,
                image=BEFORE,
                findings=tuple(
                    replace(finding, outcome="failed") if finding.id == "linkage" else finding
                    for finding in one.report.findings
                ),
            ),
        )
        for one in proofs(PROOFS)
    ]
    monkeypatch.setattr(grid, "proofs", lambda folder: before)
    told = grid.grid()

    words = r"<br>locked; in an earlier image( with the same packages)? `linkage` failed on NVIDIA H100"
    assert re.search(words, told)
    assert f" {LOCKS} locked, " in told
    assert "; 0 proved in an earlier image." in told


def test_an_earlier_image_that_the_gate_would_not_have_cleared_was_not_proved(
    monkeypatch: pytest.MonkeyPatch, suite: Suite
) -> None:
    """A report without its last checks, and one whose values do not bear out what it states."""
    for spoil in (lambda found: found[:-9], lambda found: [replace(one, measured="{}") for one in found]):
        before = [
            replace(one, report=replace(one.report, findings=tuple(spoil(one.report.findings))))
            for one in (as_of(one, BEFORE, suite) for one in PASSED)
        ]
        monkeypatch.setattr(grid, "proofs", lambda folder, told=before: told)

        assert "was proved on" not in grid.grid()
        assert "; 0 proved in an earlier image." in grid.grid()


def test_without_recorded_layers_nothing_is_foretold() -> None:
    plan = plan_cell(CELLS["2.7.1", "12.1"], MATRIX, FACTS, images=IMAGES)
    assert plan.locked.resolution.build
    assert plan.locked.resolution.build.source is Source.DEFAULT

    assert predicted_digest(plan)
    assert predicted_digest(replace(plan, locked=replace(plan.locked, layers=plan.locked.layers[1:]))) is None
