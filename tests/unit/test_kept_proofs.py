"""The signed reports in docs/proofs: they are complete, and prove only the image in which the checks ran.

If the committed lock now gives a different digest, a report is of an earlier image. This is no fault, and its
values are checked as usual. But the report clears no image, and the checks must run on GPUs again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache

import pytest

from smoke_tests.allowed import allowed_unresolved, optional
from tools import tier0
from tools.kept import IMAGES, PROOFS, as_declared_by, earlier_locks, present, proofs, without_gpus
from torchkiln.errors import GateRefused
from torchkiln.gate.gate import clear, judge
from torchkiln.gate.gpu_stack import earlier_images
from torchkiln.locks.lock import load_locked
from torchkiln.matrix import facts, matrix
from torchkiln.matrix.policy import Policy
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.report import Finding, SignedReport
from torchkiln.smoke import hosts
from torchkiln.smoke.suite import load_suite
from torchkiln.smoke.verdict import verdict
from torchkiln.util.places import ROOT

SUITE = load_suite(ROOT / "smoke_tests")
POLICY = matrix.read(ROOT / "matrix.yaml", facts.load()).policy
ALL = proofs(PROOFS)
# "inconclusive": a check was skipped, which another report of the same image must have.
PASSED = [item for item in ALL if item.report.verdict in ("pass", "inconclusive")]
TAGS = sorted({item.report.tag or "" for item in ALL})
SIBLING = Digest("sha256:" + "5b" * 32)  # an image without reports


def locked_of(tag: str) -> LockedCell:
    return load_locked(IMAGES, tag)


@cache
def digest_of(tag: str) -> Digest:
    """The predicted digest of the image that the committed lock gives."""
    found = present(tag)
    assert found
    return found


def is_current(one: SignedReport) -> bool:
    return one.report.image == digest_of(one.report.tag or "")


def findings_of(one: SignedReport, check: str) -> list[Finding]:
    return [finding for finding in one.report.findings if finding.id == check]


def tiers_of(signed_reports: Iterable[SignedReport]) -> tuple[int, ...]:
    """The tiers whose checks all ran, or do not apply, in *signed_reports*."""
    findings = (finding for signed_report in signed_reports for finding in signed_report.report.findings)
    ran = {finding.id for finding in findings if finding.outcome != "skipped"}
    return tuple(t for t in range(4) if {check.id for check in SUITE.checks if check.tier == t} <= ran)


def test_every_signature_is_valid_and_reports_exist() -> None:
    """The public key of each envelope is in the envelope's folder."""
    assert {item.name for item in ALL} == {path.name for path in PROOFS.glob("*.dsse.json")}
    assert "2.7.1-cuda12.1-cudnn9-runtime" in TAGS
    assert all(item.signers for item in ALL)


def test_no_check_failed_and_what_one_report_skips_another_has() -> None:
    """Tier 2 needs two GPUs, so on a host with one GPU its checks may be skipped."""
    found = {
        (signed_report.report.image, finding.id, finding.outcome)
        for signed_report in ALL
        for finding in signed_report.report.findings
    }
    too_few = {
        (signed_report.report.image, finding.id)
        for signed_report in ALL
        for finding in signed_report.report.findings
        if finding.tier == 2 and len(hosts.gpus(json.loads(signed_report.report.host))) == 1
    }
    skipped = {(image, check) for image, check, outcome in found if outcome == "skipped"} - too_few
    assert skipped <= {(image, check) for image, check, outcome in found if outcome == "passed"}
    assert {outcome for _, _, outcome in found} <= {"passed", "not-applicable", "skipped"}


@pytest.mark.parametrize("signed_report", ALL, ids=lambda one: one.name)
def test_a_report_is_of_a_locked_cell(signed_report: SignedReport) -> None:
    """Its image is the present one or an earlier one, and its verdict follows from its values."""
    assert digest_of(signed_report.report.tag or "")
    assert verdict(signed_report.report.findings) == signed_report.report.verdict


@pytest.mark.parametrize("tag", TAGS)
def test_the_gate_clears_the_present_image_with_reports_of_it_and_no_other(tag: str) -> None:
    """The policy requires the tiers whose checks the reports contain completely."""
    signed_reports = [item for item in PASSED if item.report.tag == tag and is_current(item)]
    image = digest_of(tag)
    if not signed_reports:
        pytest.skip(f"no passed report of {image}, the image of {tag}: run `torchkiln smoke` on GPUs")
    counted = (SUITE.digest, *POLICY.suites)
    if others := [
        signed_report.name for signed_report in signed_reports if signed_report.report.suite not in counted
    ]:
        pytest.skip(f"reports of another suite, run `torchkiln smoke` on GPUs: {', '.join(others)}")
    policy = Policy(tiers=tiers_of(signed_reports), checks=(), signed=True, suites=POLICY.suites)
    locked = locked_of(tag)
    assert {0, 1} <= set(policy.tiers)

    assert clear(judge(signed_reports, policy, locked, SUITE, image=image)).result.image == image
    with pytest.raises(GateRefused, match="not cleared"):
        clear(judge(signed_reports, policy, locked, SUITE, image=SIBLING))


@pytest.mark.parametrize("signed_report", ALL, ids=lambda one: one.name)
def test_a_report_of_another_image_clears_nothing(signed_report: SignedReport) -> None:
    """The suite and the policy are chosen so that the other image is the only fault."""
    passed = {finding.id for finding in signed_report.report.findings if finding.outcome == "passed"}
    policy = Policy(tiers=(), checks=tuple(passed & {check.id for check in SUITE.checks}), signed=True)
    tag = signed_report.report.tag or ""
    suite = as_declared_by([signed_report], SUITE)
    image = SIBLING if is_current(signed_report) else digest_of(tag)
    decision = judge([signed_report], policy, locked_of(tag), suite, image=image)
    with pytest.raises(GateRefused, match="not cleared") as refused:
        clear(decision)
    reasons = [why for _, why in refused.value.missing]
    assert reasons[0] == f"is a report of another image: {signed_report.report.image}, not {image}"
    assert set(reasons[1:]) <= {"the image.json in the image differs from that of the lock"}


@pytest.mark.parametrize("tag", TAGS)
def test_the_reports_are_of_the_gpu_stack_of_the_lock(tag: str) -> None:
    """If the base or rootfs/ changes, the GPU runs still count."""
    of_tag = [item for item in ALL if item.report.tag == tag]
    found = list(earlier_images(of_tag, locked_of(tag), earlier_locks(PROOFS).get))

    assert {other.image for other in found} == {item.report.image for item in of_tag}


@pytest.mark.parametrize(
    "signed_report", [item for item in ALL if findings_of(item, "linkage")], ids=lambda one: one.name
)
def test_the_list_of_unresolved_libraries_is_that_of_the_image(signed_report: SignedReport) -> None:
    found = {name: json.loads(findings_of(signed_report, name)[0].measured) for name in ("lock", "linkage")}
    wheels = [{"name": name, "version": version} for name, version in found["lock"]["installed"].items()]
    python = locked_of(signed_report.report.tag or "").base.python
    site = f"lib/python{'.'.join(python.split('.')[:2])}/site-packages"
    unresolved = found["linkage"]["unresolved"]
    may = optional(unresolved, wheels, site)
    assert [pair for pair in unresolved if pair not in may] == allowed_unresolved(wheels, site)


WITHOUT_GPUS = without_gpus(PROOFS)


@pytest.mark.parametrize("one", WITHOUT_GPUS, ids=lambda one: one.name)
def test_a_report_without_a_gpu_has_its_cells_name_and_a_verdict_that_follows_from_its_values(
    one: SignedReport,
) -> None:
    assert tier0.report_path(one.report.tag or "") == PROOFS / one.name
    assert {finding.tier for finding in one.report.findings} == {0}
    assert verdict(one.report.findings) == one.report.verdict == "pass"


def test_each_file_of_that_name_is_a_report_without_a_gpu() -> None:
    assert {run.name for run in WITHOUT_GPUS} == {path.name for path in PROOFS.glob("*-tier0.json")}


def test_only_the_report_that_tests_read_is_kept_beside_a_signed_one_of_its_image() -> None:
    signed = tier0.signed_here()
    assert signed <= {item.report.tag for item in ALL}
    beside = {one.name for one in WITHOUT_GPUS if one.report.tag in signed}
    assert beside <= {"2.7.1-cuda12.1-debian12-tier0.json"}


def test_tier_0_is_run_only_in_the_image_that_the_lock_gives() -> None:
    lock, other = Digest("sha256:" + "1" * 64), Digest("sha256:" + "2" * 64)
    assert tier0.why_not(lock, lock) == ""
    assert tier0.why_not(None, lock).startswith("its lock has no recorded layers")
    assert tier0.why_not(lock, None).startswith("not in dist/")
    assert tier0.why_not(lock, other) == f"dist/ has {other[:19]}, its lock gives {lock[:19]}: build it again"
