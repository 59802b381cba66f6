"""The gate clears an image only if all required checks of this suite passed; it names the missing checks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reports import (
    BUILT,
    IMAGE,
    LOCKED,
    OLD,
    OTHER,
    SUITE,
    TAG,
    TIERS,
    Done,
    FakeInside,
    found,
    gpu,
    host,
    json_lines,
    report,
    signed_report,
    suite_of,
    without,
)
from tests.smoke_suites import findings, run_suite, suite_with
from torchkiln.errors import GateRefused
from torchkiln.gate.gate import ClearedImage, clear, judge
from torchkiln.matrix.policy import Policy
from torchkiln.model.report import Finding, SmokeReport
from torchkiln.smoke.run import Checks, smoke
from torchkiln.smoke.suite import load_suite
from torchkiln.smoke.verdict import verdict

POLICY = Policy()


def cleared(*reports: SmokeReport, policy: Policy = POLICY, **options: Any) -> ClearedImage:
    """The image that the gate clears because of *reports*."""
    options = {"locked": LOCKED, "suite": SUITE, "image": IMAGE} | options
    return clear(
        judge(
            [signed_report(smoke_report, f"{at}.json") for at, smoke_report in enumerate(reports)],
            policy,
            **options,
        )
    )


def missing(*reports: SmokeReport, **options: Any) -> list[tuple[str, str]]:
    with pytest.raises(GateRefused) as refused:
        cleared(*reports, **options)
    assert refused.value.exit_code == 7
    assert TAG in refused.value.message or "2.0.1" in refused.value.message
    return list(refused.value.missing)


@pytest.mark.parametrize("runtime", ["rootfs", "crun", "runc"])  # the last two only made earlier reports
def test_an_image_whose_checks_passed_is_cleared_by_its_digest(runtime: str) -> None:
    image = cleared(report(runtime=runtime)).result

    assert (image.tag, image.image, image.suite, image.signers) == (TAG, IMAGE, SUITE.digest, ())
    assert image.passed == ("import", "compile-cpu", "cuda", "bf16", "nccl-all-reduce")
    assert image.left_out == ()


def test_a_check_that_the_policy_does_not_require_may_be_absent_or_fail() -> None:
    """Of tier 2, the policy requires only nccl-all-reduce; busbw is another check of tier 2."""
    assert cleared(without(report(), "busbw"))
    assert cleared(report(found("busbw", "failed", "x: 1 is not at least 2")))


# --- one check --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finding", "why"),
    [
        (found("cuda", "skipped", "host: no NVIDIA driver here"), "skipped: host: no NVIDIA driver here"),
        (found("cuda", "failed", "devices: is 0, wanted 1\nmore"), "failed: devices: is 0, wanted 1"),
        (found("cuda", "failed", "OSError: No space left on device"), "inconclusive: "),
        (found("cuda", measured='{"x": 2}'), "reported as passed, but x is out of bounds"),
        (found("cuda", measured="{}"), "reported as passed, but x is out of bounds"),
        (found("cuda", threshold="{}"), "reported as passed, but without any bounds"),
        (found("cuda", threshold='{"x": {"roughly": 1}}'), "reported as passed, but x is out of bounds"),
        (found("cuda", tier=0), "reported as a check of tier 0; it is of tier 1"),
        (
            found("cuda", "not-applicable", "cuda-needs-luck"),
            "reported as not applicable: 'cuda-needs-luck', but it applies",
        ),
        (found("cuda", "xfailed"), "unknown outcome 'xfailed'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_finding_that_did_not_pass_is_refused(finding: Finding, why: str) -> None:
    """The verdict is computed from the findings, so the finding is the report's only fault."""
    smoke_report = report(finding)
    names_and_reasons = missing(smoke_report)

    assert [name for name, _ in names_and_reasons] == [finding.id]
    assert names_and_reasons[0][1].startswith(why)
    assert names_and_reasons[0][1].endswith(" (0.json)")


def test_all_missing_checks_are_reported_at_once() -> None:
    smoke_report = without(
        report(found("bf16", "skipped", "host: full"), found("import", "failed", "x")), "cuda"
    )

    assert missing(replace(smoke_report, suite=OTHER)) == [
        ("0.json", f"was made by another suite: {OTHER[:19]}, not {SUITE.digest[:19]}"),
        ("import", "failed: x (0.json)"),
        ("cuda", "not run: no report contains it"),
        ("bf16", "skipped: host: full (0.json)"),
    ]


@pytest.mark.parametrize(
    ("gpus", "named"), [(0, ["cuda", "bf16", "nccl-all-reduce"]), (1, ["nccl-all-reduce"])]
)
def test_a_gpu_check_needs_enough_gpus_on_the_host(gpus: int, named: list[str]) -> None:
    smoke_report = report(host=json.dumps(host(*[gpu()] * gpus)))

    assert [name for name, _ in missing(smoke_report)] == named
    assert f"passed on a host with {gpus} GPUs; the check needs 2" in missing(smoke_report)[-1][1]


def test_a_report_without_host_facts_is_refused() -> None:
    assert [name for name, _ in missing(report(host="{}"))] == ["0.json", "cuda", "bf16", "nccl-all-reduce"]


# --- not applicable ---------------------------------------------------------------------------------


def test_applicability_is_computed_from_the_lock() -> None:
    """torch.compile does not support Python 3.11 in torch 2.0, but does in 2.7."""
    left_out = report(found("compile-cpu", "not-applicable", "no-compile-on-3.11"))
    tag = "2.0.1-cuda11.7-cudnn8-runtime"
    old = replace(left_out, tag=tag, host=json.dumps(host(gpu(), gpu(), tag=tag)))

    assert cleared(old, locked=OLD).result.left_out == (("compile-cpu", "no-compile-on-3.11"),)
    assert missing(left_out) == [
        ("compile-cpu", "reported as not applicable: 'no-compile-on-3.11', but it applies (0.json)")
    ]


def test_applicability_to_a_gpu_is_computed_from_the_reports_gpus() -> None:
    old_gpus = json.dumps(host(gpu("Tesla V100", (7, 0)), gpu("Tesla V100", (7, 0))))
    left_out = report(found("bf16", "not-applicable", "bf16-needs-8.0"), host=old_gpus)

    assert cleared(left_out).result.left_out == (("bf16", "bf16-needs-8.0"),)
    assert missing(report(host=old_gpus)) == [
        ("bf16", "passed, although it does not apply: 'bf16-needs-8.0' (0.json)")
    ]


def test_the_wrong_reason_for_not_applicable_is_refused() -> None:
    suite = suite_of(**{"import": 0, "fp8": 1})
    smoke_report = replace(
        report(found("import")),
        findings=(
            found("import"),
            replace(found("bf16"), id="fp8", outcome="not-applicable", message="luck"),
        ),
        host=json.dumps(host(gpu("NVIDIA A100", (8, 0)))),
    )
    why = missing(smoke_report, suite=suite, policy=Policy(checks=()))

    assert why == [("fp8", "reported as not applicable: 'luck', but the fact is 'fp8-needs-8.9' (0.json)")]


# --- the report as a whole --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"image": OTHER}, f"is a report of another image: {OTHER}, not {IMAGE}"),
        ({"tag": "2.7.1-cuda12.1-cudnn9-devel"}, "has the tag 2.7.1-cuda12.1-cudnn9-devel"),
        (
            {"image": None, "tag": None, "runtime": "environment"},
            "is a report of an environment, not of an image",
        ),
        ({"suite": OTHER}, f"was made by another suite: {OTHER[:19]}, not {SUITE.digest[:19]}"),
        ({"verdict": "fail"}, "states 'fail', but its values give 'pass'"),
        (
            {"host": json.dumps(host(gpu(), gpu()) | {"image_json_sha256": "0" * 64})},
            "the image.json in the image differs from that of the lock",
        ),
        (
            {"host": json.dumps(host(gpu(), gpu()) | {"image_json_sha256": None})},
            "the image.json in the image differs from that of the lock",
        ),
    ],
)
def test_a_report_of_another_image_or_suite_is_refused(change: dict[str, Any], why: str) -> None:
    assert missing(replace(report(), **change)) == [("0.json", why)]


# --- several reports --------------------------------------------------------------------------------


def test_a_policy_must_require_existing_checks() -> None:
    assert missing(report(), policy=Policy(checks=("no-such-check",))) == [
        ("policy", "it requires the check no-such-check, which the suite does not have")
    ]
    nothing = "it requires no check of the suite"
    assert missing(report(), policy=Policy(tiers=(3,), checks=())) == [("policy", nothing)]
    assert missing(policy=Policy(tiers=(3,), checks=())) == [("policy", nothing)]


_OUTCOMES = st.sampled_from(
    ("passed", "skipped", "inconclusive", "failed", "not-applicable", "absent", "doctored")
)


@given(drawn=st.lists(st.fixed_dictionaries(dict.fromkeys(TIERS, _OUTCOMES)), min_size=1, max_size=3))
def test_an_image_is_cleared_only_if_all_required_checks_passed(drawn: list[dict[str, str]]) -> None:
    """This is tested with random reports of a cell to which every check applies."""
    demanded = [name for name in TIERS if name != "busbw"]
    seen = {name: {outcomes[name] for outcomes in drawn} for name in TIERS}
    bad = {"failed", "not-applicable", "doctored"}
    should = all("passed" in seen[name] and not seen[name] & bad for name in demanded)

    try:
        cleared(*map(_drawn, drawn))
        did = True
    except GateRefused:
        did = False

    assert did == should


def _drawn(outcomes: dict[str, str]) -> SmokeReport:
    drawn = [
        found(name, measured='{"x": 2}')
        if outcome == "doctored"
        else found(name, "failed", "GPU is lost")
        if outcome == "inconclusive"
        else found(name, outcome, "because")
        for name, outcome in outcomes.items()
        if outcome != "absent"
    ]
    return replace(report(), findings=tuple(drawn), verdict=verdict(drawn))


# --- through the real runner ------------------------------------------------------------------------

# Each of these checks ends without a valid result. One run contains all of them.
BODIES = """
VALUES = {
    "skips": {"x": {"equals": 1}},
    "marked": {"x": {"equals": 1}},
    "fails": {"x": {"equals": 1}},
    "passes": {"x": {"equals": 1}},
    "nothing": {"x": {"equals": 1}},
    "half": {"x": {"equals": 1}, "two": {"type": "number"}},
}

@pytest.mark.tier(0)
def test_skips(measure):
    pytest.skip("no GPU")

@pytest.mark.tier(0)
@pytest.mark.skip
def test_marked(measure):
    assert False

@pytest.mark.tier(0)
@pytest.mark.xfail
def test_fails(measure):
    assert False

@pytest.mark.tier(0)
@pytest.mark.xfail
def test_passes(measure):
    pass

@pytest.mark.tier(0)
def test_nothing(measure):
    pass

@pytest.mark.tier(0)
def test_half(measure):
    measure("x", 1)
"""


def test_checks_without_a_result_are_refused_end_to_end(tmp_path: Path) -> None:
    """The checks run with pytest in the real runner, and the gate judges the report; nothing is faked."""
    folder = suite_with(tmp_path / "suite", {"test_bodies.py": BODIES})
    events = run_suite(folder, tmp_path)
    ids = ["skips", "marked", "fails", "passes", "nothing", "half"]
    assert {name: item["outcome"] for name, item in findings(events).items()} == dict.fromkeys(ids, "failed")
    suite = load_suite(folder)
    smoke_report = smoke(
        BUILT,
        FakeInside(Done(stdout=json_lines(*events))),
        Checks(suite=suite),
        wheels=tmp_path,
        when="2026-11-21T00:00:00Z",
    )

    named = [name for name, _ in missing(smoke_report, suite=suite, policy=Policy(checks=()))]

    assert {*named} >= {*ids}
