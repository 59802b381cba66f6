"""The judgement: what is refused, what is allowed until when, and whether a scan tells of this image."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest

from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.sbom.vulnerabilities import (
    AllowedVulnerability,
    Scan,
    ScanVerdict,
    Severity,
    Threshold,
    Vulnerability,
    confirm,
    judge,
)

DAY = date(2026, 11, 22)
MANIFEST, CONFIG, OTHER = (Digest("sha256:" + letter * 64) for letter in "abc")


SAMPLE = Vulnerability(
    id="CVE-1",
    aliases=(),
    package="zlib1g",
    installed="1.2",
    fixed="1.3",
    severity=Severity.HIGH,
    kind="deb",
    path="",
)


def fault(name: str = "CVE-1", **changes: Any) -> Vulnerability:
    return replace(SAMPLE, id=name, **changes)


def entry(name: str = "CVE-1", **changes: Any) -> AllowedVulnerability:
    return replace(
        AllowedVulnerability(id=name, package=None, reason="not reached", until=DAY, where="x:1"), **changes
    )


def scan(*findings: Vulnerability) -> Scan:
    return Scan(
        tool="grype",
        version="1",
        database=None,
        manifest=MANIFEST,
        config=CONFIG,
        system="debian 12",
        ended=False,
        hidden=0,
        findings=findings,
    )


def judged(
    *findings: Vulnerability,
    by: tuple[AllowedVulnerability, ...] = (),
    threshold: Threshold = Threshold(),  # noqa: B008 (it is frozen)
    on: date = DAY,
) -> ScanVerdict:
    return judge(scan(*findings), threshold, by, on=on)


def test_severities_have_an_order() -> None:
    words = [severity.word for severity in sorted(Severity)]
    assert words == ["unknown", "negligible", "low", "medium", "high", "critical"]


@pytest.mark.parametrize("least", Severity)
def test_this_bad_or_worse_is_refused(least: Severity) -> None:
    """And the rest is counted, the worst first."""
    findings = [fault(severity.word, severity=severity) for severity in Severity]

    found = judged(*findings, threshold=Threshold(severity=least))

    assert {one.severity for one in found.refused} == {one for one in Severity if one >= least}
    assert found.passed_over == tuple((one, 1) for one in reversed(Severity) if one < least)


def test_high_is_refused_where_nothing_is_said() -> None:
    assert judged(fault(severity=Severity.HIGH), fault("CVE-2", severity=Severity.MEDIUM)).refused == (
        fault(),
    )


def test_what_nobody_has_mended_counts_unless_it_is_ignored() -> None:
    unfixed = fault(fixed=None)

    assert judged(unfixed).refused == (unfixed,)
    ignored = judged(unfixed, fault("CVE-2"), threshold=Threshold(unfixed="ignore"))
    assert (ignored.refused, ignored.passed_over) == ((fault("CVE-2"),), ((Severity.HIGH, 1),))


@pytest.mark.parametrize(("later", "good"), [(-1, True), (0, True), (1, False), (400, False)])
def test_an_allowance_counts_on_its_last_day_and_not_on_the_next(later: int, good: bool) -> None:
    by = entry()

    found = judged(fault(), by=(by,), on=DAY + timedelta(days=later))

    assert found.allowed == (((fault(), by),) if good else ())
    assert found.refused == (() if good else (fault(),))
    assert found.expired == (() if good else (by,))
    assert found.idle == ()


@pytest.mark.parametrize(
    ("by", "fits"),
    [
        (entry(), True),
        (entry("CVE-10"), False),
        (entry("cve-1"), False),
        (entry(package="zlib1g"), True),
        (entry(package="zlib1g-dev"), False),
        (entry("GHSA-x"), True),
    ],
)
def test_an_allowance_fits_one_fault_in_one_package_or_in_all(by: AllowedVulnerability, fits: bool) -> None:
    """By whichever of its names."""
    found = judged(fault(aliases=("GHSA-x",)), by=(by,))

    assert (len(found.allowed), len(found.refused)) == ((1, 0) if fits else (0, 1))
    assert found.idle == (() if fits else (by,))


def test_names_of_packages_are_compared_as_python_does() -> None:
    assert judged(fault(package="Typing_Extensions"), by=(entry(package="typing-extensions"),)).refused == ()


def test_an_expired_entry_does_not_hide_a_good_one() -> None:
    old, good = entry(until=DAY - timedelta(days=1)), entry(where="x:2")

    found = judged(fault(), by=(old, good))

    assert (found.allowed, found.expired) == (((fault(), good),), (old,))


def test_what_fits_a_finding_below_the_threshold_is_not_idle() -> None:
    """Another run may have another threshold; and it allows nothing here."""
    found = judged(fault(severity=Severity.LOW), by=(entry(),))

    assert (found.allowed, found.idle) == ((), ())


def test_the_scan_of_this_image_is_confirmed() -> None:
    """Trivy tells no manifest, an SBOM's scan no config: one of them is enough."""
    for told in (scan(), replace(scan(), manifest=None), replace(scan(), config=None)):
        confirm(told, manifest=MANIFEST, config=CONFIG)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"manifest": OTHER}, "its manifest is sha256:ccc"),
        ({"config": OTHER}, "its config is sha256:ccc"),
        ({"manifest": None, "config": OTHER}, "its config is sha256:ccc"),
        ({"manifest": None, "config": None}, "names no image"),
        ({"system": None}, "detected no distribution"),
    ],
)
def test_a_scan_that_says_nothing_of_this_image_is_refused(changes: dict[str, Any], says: str) -> None:
    """However healthy it looks."""
    with pytest.raises(VerificationFailed, match=says) as refused:
        confirm(replace(scan(), **changes), manifest=MANIFEST, config=CONFIG)
    assert refused.value.hint
