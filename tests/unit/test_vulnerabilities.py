"""How vulnerabilities are judged, and the list of allowances."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchkiln.errors import ConfigError, VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.sbom.allowances import load, read
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


def checked(
    *findings: Vulnerability,
    by: tuple[AllowedVulnerability, ...] = (),
    threshold: Threshold = Threshold(),  # noqa: B008 (a frozen dataclass)
    on: date = DAY,
) -> ScanVerdict:
    return judge(scan(*findings), threshold, by, on=on)


def test_severities_have_an_order() -> None:
    words = [severity.word for severity in sorted(Severity)]
    assert words == ["unknown", "negligible", "low", "medium", "high", "critical"]


@pytest.mark.parametrize("least", Severity)
def test_findings_of_this_severity_or_worse_are_refused(least: Severity) -> None:
    """All other findings are counted. The worst findings are first."""
    findings = [fault(severity.word, severity=severity) for severity in Severity]

    found = checked(*findings, threshold=Threshold(severity=least))

    assert {item.severity for item in found.refused} == {item for item in Severity if item >= least}
    assert found.passed_over == tuple((item, 1) for item in reversed(Severity) if item < least)


def test_the_default_threshold_is_high() -> None:
    assert checked(fault(severity=Severity.HIGH), fault("CVE-2", severity=Severity.MEDIUM)).refused == (
        fault(),
    )


def test_unfixed_findings_count_unless_ignored() -> None:
    unfixed = fault(fixed=None)

    assert checked(unfixed).refused == (unfixed,)
    ignored = checked(unfixed, fault("CVE-2"), threshold=Threshold(unfixed="ignore"))
    assert (ignored.refused, ignored.passed_over) == ((fault("CVE-2"),), ((Severity.HIGH, 1),))


@pytest.mark.parametrize(("later", "good"), [(-1, True), (0, True), (1, False), (400, False)])
def test_an_allowance_counts_on_its_last_day_and_not_on_the_next(later: int, good: bool) -> None:
    by = entry()

    found = checked(fault(), by=(by,), on=DAY + timedelta(days=later))

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
def test_an_allowance_matches_a_vulnerability_in_one_or_all_packages(
    by: AllowedVulnerability, fits: bool
) -> None:
    """The allowance may have any of the vulnerability's names."""
    found = checked(fault(aliases=("GHSA-x",)), by=(by,))

    assert (len(found.allowed), len(found.refused)) == ((1, 0) if fits else (0, 1))
    assert found.idle == (() if fits else (by,))


def test_package_names_are_normalized() -> None:
    assert checked(fault(package="Typing_Extensions"), by=(entry(package="typing-extensions"),)).refused == ()


def test_an_expired_entry_does_not_hide_a_good_one() -> None:
    old, good = entry(until=DAY - timedelta(days=1)), entry(where="x:2")

    found = checked(fault(), by=(old, good))

    assert (found.allowed, found.expired) == (((fault(), good),), (old,))


def test_an_entry_for_a_finding_below_the_threshold_counts_as_used() -> None:
    """Another run may have a threshold for which the entry is needed."""
    found = checked(fault(severity=Severity.LOW), by=(entry(),))

    assert (found.allowed, found.idle) == ((), ())


def test_the_scan_of_this_image_is_confirmed() -> None:
    """One digest is enough: Trivy does not report the manifest's, and the scan of an SBOM has no config."""
    for scan_result in (scan(), replace(scan(), manifest=None), replace(scan(), config=None)):
        confirm(scan_result, manifest=MANIFEST, config=CONFIG)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"manifest": OTHER}, "its manifest is sha256:ccc"),
        ({"config": OTHER}, "its config is sha256:ccc"),
        ({"manifest": None, "config": OTHER}, "its config is sha256:ccc"),
        ({"manifest": None, "config": None}, "names no image"),
        ({"system": None}, "detected no distribution"),
    ],
)
def test_a_scan_of_another_image_is_refused(changes: dict[str, Any], message: str) -> None:
    """Even if the scan has no findings."""
    with pytest.raises(VerificationFailed, match=message) as refused:
        confirm(replace(scan(), **changes), manifest=MANIFEST, config=CONFIG)
    assert refused.value.hint


GOOD = """\
# what may be for a while
- id: CVE-2023-45853
  package: zlib1g
  reason: minizip is in no package of ours; Debian mends it in the next release
  until: 2027-03-31
- id: GHSA-q2x7-8rv6-6q7h
  reason: our images render no untrusted templates
  until: 2026-12-24
"""


def test_a_valid_list() -> None:
    assert load(GOOD, name="list.yaml", on=DAY) == (
        AllowedVulnerability(
            id="CVE-2023-45853",
            package="zlib1g",
            reason="minizip is in no package of ours; Debian mends it in the next release",
            until=date(2027, 3, 31),
            where="list.yaml:2",
        ),
        AllowedVulnerability(
            id="GHSA-q2x7-8rv6-6q7h",
            package=None,
            reason="our images render no untrusted templates",
            until=date(2026, 12, 24),
            where="list.yaml:6",
        ),
    )


def test_an_empty_list_is_valid() -> None:
    assert load("[]", name="list.yaml", on=DAY) == ()


def _entry(**changes: str | None) -> str:
    values = {"id": "CVE-1-2", "reason": "not reachable", "until": "2026-12-24"} | changes
    return "- " + "\n  ".join(f"{key}: {value}" for key, value in values.items() if value is not None) + "\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "list.yaml:1: the file is empty"),
        ("id: CVE-1-2", "list.yaml:1: must be a list, not a mapping"),
        ("- CVE-1-2", "list.yaml:1: [0]: must be a mapping"),
        (_entry(reason=None), "list.yaml:1: [0]: the key 'reason' is missing"),
        (_entry(until=None), "list.yaml:1: [0]: the key 'until' is missing"),
        (_entry(id=None), "list.yaml:1: [0]: the key 'id' is missing"),
        (_entry(reason="''"), "list.yaml:2: [0].reason: '' has 0 characters; at least 10 are required"),
        (_entry(reason="'          .'"), "list.yaml:2: [0].reason: is too short"),
        (_entry(until="soon"), "list.yaml:3: [0].until: 'soon' is not the last day"),
        (_entry(until="2027-02-29"), "list.yaml:3: [0].until: '2027-02-29' is not a valid date"),
        (_entry(until="2027-11-24"), "list.yaml:3: [0].until: 2027-11-24 is more than a year ahead"),
        (_entry(until="never"), "list.yaml:3: [0].until: 'never' is not the last day"),
        (_entry(id="'*'"), "list.yaml:1: [0].id: '*' is not the id of a vulnerability"),
        (_entry(id="libfoo"), "list.yaml:1: [0].id: 'libfoo' is not the id of a vulnerability"),
        (_entry(package="'*'"), "list.yaml:4: [0].package: '*' is not the name of a package"),
        (_entry(packages="zlib1g"), "list.yaml:4: [0].packages: unknown key; nearest valid: package"),
        (
            _entry() + _entry(reason="another reason"),
            "list.yaml:4: [1]: CVE-1-2: duplicate entry, first at list.yaml:1",
        ),
        ("- id: &a CVE-1-2\n", "list.yaml:1: anchors and aliases"),
        ("- id: [\n", "list.yaml:2: not valid YAML"),
    ],
)
def test_an_invalid_list_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(text, name="list.yaml", on=DAY)
    assert message in refused.value.message
    assert refused.value.hint == "fix list.yaml; see docs/scan.md for the format"


def test_an_entry_lasts_at_most_a_year() -> None:
    assert load(_entry(until="2027-11-23"), name="x", on=DAY)[0].until == date(2027, 11, 23)


def test_an_expired_entry_is_not_an_error_of_the_file() -> None:
    """Otherwise, after that day every image would be refused, even without this vulnerability."""
    assert load(_entry(until="2020-01-01"), name="x", on=DAY)[0].until == date(2020, 1, 1)


def test_a_vulnerability_in_two_packages_needs_two_entries() -> None:
    assert len(load(_entry(package="zlib1g") + _entry(package="zlib1g-dev"), name="x", on=DAY)) == 2


def test_all_errors_are_reported() -> None:
    with pytest.raises(ConfigError) as refused:
        load(_entry(until="2027-02-29") + _entry(until="2030-01-01"), name="x", on=DAY)
    assert [line.partition(": ")[0] for line in refused.value.message.splitlines()] == ["x:3", "x:6", "x:4"]


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text(GOOD)
    assert len(read(tmp_path / "list.yaml", on=DAY)) == 2


@pytest.mark.parametrize("made", ["missing", "folder", "bytes"])
def test_an_unreadable_file_is_reported(tmp_path: Path, made: str) -> None:
    path = tmp_path / "list.yaml"
    if made == "folder":
        path.mkdir()
    elif made == "bytes":
        path.write_bytes(b"- id: \xff\n")
    with pytest.raises(ConfigError, match=str(path)):
        read(path, on=DAY)


LINES = st.sampled_from(
    [*GOOD.splitlines(), "- id: *a", "  until: 9999-99-99", "  until: 1", "[", "- - -", "é\x85"]
)


@given(text=st.lists(LINES, max_size=12).map("\n".join))
def test_lines_in_any_order_are_a_list_or_an_error(text: str) -> None:
    """Only the expected exception is raised. Each entry of the list ends within a year."""
    try:
        found = load(text, name="x", on=DAY)
    except ConfigError:
        return
    assert all(entry.reason and entry.until <= date(2027, 11, 23) for entry in found)
