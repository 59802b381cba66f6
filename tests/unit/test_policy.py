"""The policy: which reports count by origin, age and GPUs, for which cells; how an override is recorded."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from tests.reports import (
    IMAGE,
    LOCKED,
    OLD,
    OTHER,
    SUITE,
    WHEN,
    gpu,
    host,
    report,
    signed_report,
    without,
)
from torchkiln.errors import ConfigError
from torchkiln.gate.gate import clear, judge, override
from torchkiln.matrix import facts, matrix
from torchkiln.matrix.policy import Policy
from torchkiln.model.report import SmokeReport
from torchkiln.util.places import ROOT

POLICY = Policy()


def missing(
    *reports: SmokeReport, policy: Policy = POLICY, at: datetime | None = None
) -> list[tuple[str, str]]:
    """The missing requirements; empty if the gate clears the image."""
    signed_reports = [
        signed_report(smoke_report, f"{number}.json") for number, smoke_report in enumerate(reports)
    ]
    decision = judge(signed_reports, policy, LOCKED, SUITE, image=IMAGE, at=at)
    if not decision.missing:
        assert clear(decision).override is None
    return list(decision.missing)


NOW = datetime(2026, 12, 21, 18, 0, tzinfo=timezone.utc)  # 30 days and an hour after WHEN


@pytest.mark.parametrize(
    ("days", "when", "why"),
    [
        (31, WHEN, None),
        (0, WHEN, None),
        (30, WHEN, f"ran at {WHEN}: the policy requires runs of the last 30 days"),
        (31, None, "has no time of its run: the policy requires runs of the last 31 days"),
        (31, "2026-12-22T00:00:00Z", "ran at 2026-12-22T00:00:00Z, which is in the future"),
    ],
)
def test_a_report_ages(days: int, when: str | None, why: str | None) -> None:
    policy, smoke_report = Policy(report_age=days), report(when=when)

    assert missing(smoke_report, policy=policy, at=NOW) == ([("0.json", why)] if why else [])
    assert missing(smoke_report, policy=policy) == []  # without `at`, the age is not checked


def test_another_suite_counts_if_the_policy_names_it() -> None:
    smoke_report = replace(report(), suite=OTHER)

    assert [name for name, _ in missing(smoke_report)] == ["0.json"]
    assert missing(smoke_report, policy=Policy(suites=(OTHER,))) == []


def test_each_class_of_gpus_that_the_policy_names_must_have_been_seen() -> None:
    h200, a100 = (
        report(),
        report(host=json.dumps(host(gpu("NVIDIA A100", (8, 0)), gpu("NVIDIA A100", (8, 0))))),
    )
    mixed = report(host=json.dumps(host(gpu(), gpu("NVIDIA A100", (8, 0)))))
    policy = Policy(gpus=("8.0", "9.0"))

    assert missing(h200, a100, policy=policy) == []
    why = "no run on these GPUs passed cuda, bf16, nccl-all-reduce"
    assert missing(h200, policy=policy) == [("GPU 8.0", why)]
    assert missing(mixed, policy=policy) == [("GPU 9.0", why)]
    part = without(a100, "nccl-all-reduce")
    assert missing(h200, part, policy=policy) == [("GPU 8.0", "no run on these GPUs passed nccl-all-reduce")]


def test_the_policy_can_differ_for_some_cells() -> None:
    """Each key has the value of the last entry in `cells` that matches the cell and has the key."""
    text = """
policy:
  cells:
    - {status: minor-compat, checks: [busbw], tiers: [0]}
    - {torch: "2.7.1", cuda: "12.1", report_age: 7}
    - {flavor: devel, checks: []}
    - {torch: "2.0.1", signed: true, gpus: ["9.0"]}
"""
    given = (ROOT / "matrix.yaml").read_text().partition("\npolicy:")[0] + text
    policy = matrix.load(given, facts.load()).policy

    assert policy.of(LOCKED.resolution) == Policy(tiers=(0,), checks=("busbw",), report_age=7)
    assert policy.of(OLD.resolution) == Policy(signed=True, gpus=("9.0",))
    named = {
        status.check for status in judge([], policy, LOCKED, SUITE, image=IMAGE).statuses if status.required
    }
    assert named == {"import", "compile-cpu", "busbw"}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("gpus: [sm_90]", "unknown GPU capability 'sm_90'"),
        ("cells: [{gpus: ['9.9'], torch: '2.7.1'}]", "unknown GPU capability '9.9'; nearest: "),
        ("cells: [{checks: []}]", "matches every cell; set at least one of torch, cuda, flavor, os, status"),
        ("cells: [{torch: '2.7'}]", "'2.7' is not in this matrix; nearest: 2.7.1"),
        ("cells: [{status: unavailable}]", "'unavailable' is not valid; valid: native, minor-compat"),
        ("cells: [{torch: '2.7.1', keys: [a]}]", "keys"),
        ("report_age: -1", "report_age"),
        ("suites: [abc]", "suites"),
        ("reprot_age: 1", "nearest valid: report_age"),
    ],
)
def test_an_invalid_policy_is_refused_with_its_line(line: str, why: str) -> None:
    given = (ROOT / "matrix.yaml").read_text().partition("\npolicy:")[0] + f"\npolicy:\n  {line}\n"

    with pytest.raises(ConfigError, match=re.escape(why)) as refused:
        matrix.load(given, facts.load())
    assert refused.value.message.startswith(f"matrix.yaml:{len(given.splitlines())}: ")


def test_missing_checks_can_be_overridden_and_remain_recorded() -> None:
    decision = judge([signed_report(without(report(), "cuda"))], POLICY, LOCKED, SUITE, image=IMAGE)
    image = override(decision, "  tested manually on node 7 ")

    assert image.override == "tested manually on node 7"
    assert image.result.missing == (("cuda", "not run: no report contains it"),)
    with pytest.raises(ConfigError, match="requires a reason"):
        override(decision, " ")
