"""smoke(): whatever runtime and image print, each selected check has a finding, and a verdict follows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.reports import BUILT, IMAGE, WHEN, Done, FakeInside, json_lines
from tests.smoke_suites import CLAIMS, FACTS, SUITE
from torchkiln.errors import ConfigError
from torchkiln.model.report import Finding, SmokeReport
from torchkiln.smoke import report as forms
from torchkiln.smoke.run import Checks, smoke
from torchkiln.smoke.suite import load_suite, suite_digest
from torchkiln.smoke.verdict import faults, host_fault, verdict

WHOLE = {"outcome": "not-applicable", "message": "device-code-is-whole"}


def passed(check: str, **other: Any) -> dict[str, Any]:
    """The event of a check that passed; `device-code` does not apply to this full image."""
    event = {"event": "finding", "id": check, "tier": 0, "seconds": 1.5, "outcome": "passed", "message": ""}
    values = {"measured": {"x": 1}, "threshold": {"x": {"equals": 1}}}
    return event | values | (WHOLE if check == "device-code" else {}) | other


def finding(**other: Any) -> Finding:
    """A finding that passed, changed by *other*."""
    base = Finding(
        id="lock",
        tier=0,
        outcome="passed",
        seconds=1.0,
        message="",
        measured='{"x": 1}',
        threshold='{"x": {"equals": 1}}',
    )
    return replace(base, **other)


def report_of(ending: Done, facts: Mapping[str, Any] = FACTS, **options: Any) -> SmokeReport:
    checks = Checks(suite=load_suite(SUITE), **options)
    subject = replace(BUILT, facts=facts)
    return smoke(subject, FakeInside(ending), checks, wheels=Path("/wheels"), when=WHEN)


EVERY = [check.id for check in load_suite(SUITE).checks if check.tier == 0]


def test_a_passing_report_names_image_and_suite() -> None:
    report = report_of(Done(stdout=json_lines({"event": "host", "kernel": "6.1"}, *map(passed, EVERY))))
    assert (report.verdict, report.image, report.tag) == ("pass", IMAGE, CLAIMS["tag"])
    assert report.suite == suite_digest(SUITE)
    assert json.loads(report.host) == {"kernel": "6.1"}
    assert [found.id for found in report.findings] == EVERY


def test_the_image_gets_only_the_facts_the_suite_and_pytest() -> None:
    inside = FakeInside(Done())
    checks = Checks(suite=load_suite(SUITE), only=("lock",), limit_s=7)
    smoke(BUILT, inside, checks, wheels=Path("/wheels"), when=WHEN)
    argv, binds, facts = inside.commands[0]
    assert argv[:5] == ["/opt/venv/bin/python", "-I", "-S", "-B", "/opt/torchkiln/smoke_tests/runner.py"]
    assert argv[5:] == [
        "--facts", "/opt/torchkiln/smoke-facts.json", "--wheels", "/opt/torchkiln/pytest-wheels",
        "--tier", "0", "--limit", "7", "--only", "lock",
    ]  # fmt: skip
    copy = binds["/opt/torchkiln/smoke_tests"]
    assert copy != SUITE
    assert not copy.exists()  # removed after the run
    assert facts == FACTS


def test_the_wheels_that_were_cut_are_mounted() -> None:
    """The facts for the check contain the paths of these wheels."""
    inside, wheels = FakeInside(Done()), {"torch": Path("/store/torch.whl")}
    checks = Checks(suite=load_suite(SUITE), only=("device-code",))
    smoke(replace(BUILT, wheels=wheels), inside, checks, wheels=Path("/wheels"), when=WHEN)
    _, binds, facts = inside.commands[0]

    assert facts == {**FACTS, "wheel_files": {"torch": "/opt/torchkiln/wheels/torch.whl"}}
    assert binds["/opt/torchkiln/wheels/torch.whl"] == wheels["torch"]


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        (
            Done(code=127, stderr=b"no such file"),
            "no result: the runner ended with exit code 127 before this check\nno such file",
        ),
        (Done(code=137, timed_out=True), "no result: the runner timed out before this check"),
        (
            Done(code=137),
            "no result: the runner was killed by SIGKILL (possibly out of memory) before this check",
        ),
        (Done(code=139), "no result: the runner was killed by SIGSEGV before this check"),
        (
            Done(stdout=b"Segmentation fault\n[1]\n{\n\xff"),
            "no result: the runner ended with exit code 0 before this check",
        ),
    ],
)
def test_without_output_every_check_fails(ending: Done, message: str) -> None:
    report = report_of(ending)
    assert report.verdict == "fail"
    assert {found.message for found in report.findings} == {message}
    assert len(report.findings) == len(EVERY)


@pytest.mark.parametrize(
    ("kills", "message"), [(0, ""), (1, "killed 1 process during"), (2, "killed 2 processes during")]
)
def test_processes_killed_for_memory_are_reported_with_failures(kills: int, message: str) -> None:
    """A process that was killed before the run does not count. Checks that passed get no such note."""
    lines = json_lines(
        passed(EVERY[0]), passed(EVERY[1]) | {"outcome": "failed", "message": "killed by SIGKILL"}
    )
    inside = FakeInside(Done(stdout=lines), kills=kills)
    report = smoke(BUILT, inside, Checks(suite=load_suite(SUITE)), wheels=Path("/wheels"), when=WHEN)
    passed_check, failed_check = report.findings[:2]

    assert (": out of memory" in failed_check.message) == bool(kills)
    assert message in failed_check.message
    assert failed_check.message.startswith("killed by SIGKILL")
    assert "memory" not in passed_check.message


def test_an_unfinished_check_fails_with_a_reason() -> None:
    lines = json_lines(*map(passed, EVERY[:2]), {"event": "start", "id": EVERY[2]})
    report = report_of(Done(code=137, stdout=lines))
    assert [found.outcome for found in report.findings[:4]] == ["passed", "passed", "failed", "failed"]
    assert "during this check" in report.findings[2].message
    assert "before this check" in report.findings[3].message


def test_applicability_is_computed_again_outside_the_image() -> None:
    left_out = passed("compile-cpu", outcome="not-applicable", message="no-compile-on-3.11")
    rest = [passed(check) for check in EVERY if check != "compile-cpu"]
    false_report = report_of(Done(stdout=json_lines(*rest, left_out)))
    assert false_report.verdict == "fail"
    old = FACTS | {"claims": CLAIMS | {"torch": "2.0.1+cu117"}}
    assert report_of(Done(stdout=json_lines(*rest, left_out)), old).verdict == "pass"
    assert report_of(Done(stdout=json_lines(*rest, passed("compile-cpu"))), old).verdict == "fail"


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ([finding()], "pass"),
        ([], "inconclusive"),
        ([finding(outcome="not-applicable", message="fact")], "inconclusive"),
        ([finding(), finding(outcome="not-applicable", message="fact")], "pass"),
        ([finding(), finding(outcome="skipped", message="host: no GPU")], "inconclusive"),
        ([finding(), finding(outcome="failed", message="x: is 2, wanted 1")], "fail"),
        ([finding(), finding(outcome="failed", message="OSError: No space left on device")], "inconclusive"),
        ([finding(outcome="failed", message="x"), finding(outcome="skipped")], "fail"),
        ([finding(measured='{"x": 2}')], "fail"),
        ([finding(measured="{}")], "fail"),
        ([finding(threshold="{}")], "fail"),
        ([finding(threshold='{"x": {}}')], "fail"),
        ([finding(threshold='{"x": {"roughly": 1}}')], "fail"),
    ],
)
def test_verdict_follows_from_outcomes_and_raw_values(findings: list[Finding], expected: str) -> None:
    assert verdict(findings) == expected


def test_a_host_fault_is_recognized_by_its_text() -> None:
    text = "RuntimeError: DataLoader worker is killed by signal: Bus error. insufficient shared memory (shm)"
    assert host_fault(finding(outcome="failed", message=text)) == "/dev/shm is full"
    assert host_fault(finding(message=text)) is None


def test_a_report_is_equal_after_writing_and_reading() -> None:
    report = report_of(Done(stdout=json_lines({"event": "host", "cores": 2}, *map(passed, EVERY))))
    assert forms.from_json(forms.to_json(report)) == report


def test_an_edited_report_gives_another_verdict() -> None:
    """Someone edited a failed check to `passed`, but not its values."""
    failed = passed("lock", outcome="failed", message="x: is 2, wanted 1", measured={"x": 2})
    rest = [passed(check) for check in EVERY if check != "lock"]
    document = json.loads(forms.to_json(report_of(Done(stdout=json_lines(*rest, failed)))))
    for check in document["checks"]:
        check["outcome"] = "passed"
    document["verdict"] = "pass"
    edited = forms.from_json(json.dumps(document).encode())
    assert edited.verdict == "pass"
    assert verdict(edited.findings) == "fail"


def test_an_invalid_report_is_refused_with_every_fault() -> None:
    document = json.loads(forms.to_json(report_of(Done(stdout=json_lines(*map(passed, EVERY))))))
    document["checks"][1]["outcome"] = "fine"
    document["image"] = "latest"
    with pytest.raises(ConfigError) as caught:
        forms.from_json(json.dumps(document).encode(), where="r.json")
    assert "r.json: checks[1].outcome" in caught.value.message
    assert "r.json: image" in caught.value.message


def test_junit_and_markdown_have_failures_and_skipped_checks() -> None:
    report = SmokeReport(
        image=IMAGE,
        tag="t",
        suite=IMAGE,
        runtime="fake",
        tool="0.1.0",
        when=None,
        nonce=None,
        findings=(
            finding(),
            finding(id="archs", outcome="failed", message="archs: 'sm_90' is missing\x1b[0m"),
            finding(id="compile-cpu", outcome="not-applicable", message="no-compile-on-3.11"),
        ),
        verdict="fail",
        host="{}",
    )
    from xml.etree import ElementTree

    suite = ElementTree.fromstring(forms.to_junit(report))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    assert suite.find("testcase[@name='archs']/failure") is not None
    assert "| archs | 0 | failed | 1.0 | archs: 'sm_90' is missing" in forms.to_markdown(report)
    assert any("archs: 'sm_90' is missing" in line for line in forms.to_lines(report))


def test_faults_of_a_success_name_the_value() -> None:
    assert faults(finding(measured='{"x": 2}')) == ["reported as passed, but x is out of bounds"]


def test_suite_digest_covers_every_file_except_caches(tmp_path: Path) -> None:
    (tmp_path / "probes").mkdir()
    (tmp_path / "probes" / "a.py").write_text("1")
    before = suite_digest(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_text("x")
    assert suite_digest(tmp_path) == before
    (tmp_path / "probes" / "a.py").write_text("2")
    assert suite_digest(tmp_path) != before
    with pytest.raises(ConfigError, match="not a folder of smoke tests"):
        load_suite(tmp_path)
