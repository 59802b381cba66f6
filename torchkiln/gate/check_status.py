"""The status of one check according to all reports.

Reports are not trusted: whether a check applies is computed again from the lock. A check that was skipped,
failed because of the host or is absent has not passed; a pass does not cancel a failure in another report.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torchkiln.model.report import Finding, SignedReport, SmokeReport
from torchkiln.smoke import hosts
from torchkiln.smoke.declared import declared_faults
from torchkiln.smoke.report import values
from torchkiln.smoke.suite import Suite, SuiteCheck
from torchkiln.smoke.verdict import faults, host_fault

#: Tier -> minimum number of GPUs that a check of the tier needs.
GPUS = {0: 0, 1: 1, 2: 2, 3: 1}
Outcome = Literal["refused", "passed", "not-applicable", "missing"]
#: If reports differ, the first of these is the outcome of the check.
_ORDER: tuple[Outcome, ...] = ("refused", "passed", "not-applicable", "missing")


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckStatus:
    check: str
    tier: int
    required: bool
    outcome: Outcome
    measured: str  # the values that have a bound, from the first report in which it passed
    where: tuple[str, ...]  # names of the reports with this outcome
    fact: str  # why it does not apply; else empty
    lacks: tuple[str, ...]  # why it is not proved, with the report's name
    capabilities: tuple[str, ...]  # of the GPUs on which it passed or does not apply, "9.0"


class _Evaluation(NamedTuple):
    """The evaluation of one report's finding on one check."""

    outcome: Outcome
    text: str  # the fact for which it does not apply; else why it is not proved, with the report's name
    signed_report: SignedReport
    finding: Finding


def check_status(
    check: SuiteCheck,
    evidence: Sequence[tuple[SignedReport, Mapping[str, Any]]],
    suite: Suite,
    *,
    required: bool,
) -> CheckStatus:
    """The status of *check* of *suite*.

    :param evidence: each report with the facts of its image, from the lock by `expected.facts_of`.
    """
    evaluations = [
        _evaluate(check, finding, signed_report, suite, facts)
        for signed_report, facts in evidence
        for finding in signed_report.report.findings
        if finding.id == check.id
    ]
    outcome: Outcome = "missing"
    if evaluations:
        outcome = min((evaluation.outcome for evaluation in evaluations), key=_ORDER.index)
    decisive = [evaluation for evaluation in evaluations if evaluation.outcome == outcome]
    proving = [found for found in evaluations if found.outcome in ("passed", "not-applicable")]
    lacks = [evaluation.text for evaluation in decisive] or ["not run: no report contains it"]
    return CheckStatus(
        check=check.id,
        tier=check.tier,
        required=required,
        outcome=outcome,
        measured=values(decisive[0].finding) if outcome == "passed" else "",
        where=tuple(evaluation.signed_report.name for evaluation in decisive),
        fact=decisive[0].text if outcome == "not-applicable" else "",
        lacks=tuple(lacks) if outcome in ("refused", "missing") else (),
        capabilities=tuple(sorted({_capability(found.signed_report) for found in proving} - {""})),
    )


def _evaluate(
    check: SuiteCheck, finding: Finding, signed_report: SignedReport, suite: Suite, facts: Mapping[str, Any]
) -> _Evaluation:
    if finding.outcome == "skipped":
        return _Evaluation(
            "missing", f"skipped: {_first(finding.message)} ({signed_report.name})", signed_report, finding
        )
    if fault := host_fault(finding):
        return _Evaluation("missing", f"inconclusive: {fault} ({signed_report.name})", signed_report, finding)
    if reasons := list(_contradictions(check, finding, signed_report.report, suite, facts)):
        return _Evaluation("refused", f"{'; '.join(reasons)} ({signed_report.name})", signed_report, finding)
    if finding.outcome == "passed":
        return _Evaluation("passed", "", signed_report, finding)
    return _Evaluation("not-applicable", finding.message, signed_report, finding)


def _contradictions(
    check: SuiteCheck, finding: Finding, report: SmokeReport, suite: Suite, facts: Mapping[str, Any]
) -> Iterator[str]:
    """Why *finding* of *report* is a failure, or contradicts itself."""
    host = json.loads(report.host)
    fact = suite.not_applicable(check.id, facts, hosts.capability(host))
    here, needed = len(hosts.gpus(host)), GPUS[check.tier]
    if finding.tier != check.tier:
        yield f"reported as a check of tier {finding.tier}; it is of tier {check.tier}"
    if finding.outcome == "passed":
        yield from faults(finding) or declared_faults(check, finding, suite, facts, host)
        if fact:
            yield f"passed, although it does not apply: {fact!r}"
        if here < needed:
            yield f"passed on a host with {here} GPUs; the check needs {needed}"
    elif finding.outcome == "not-applicable":
        if fact != finding.message:
            computed = f"the fact is {fact!r}" if fact else "it applies"
            yield f"reported as not applicable: {finding.message!r}, but {computed}"
    elif finding.outcome == "failed":
        yield f"failed: {_first(finding.message)}"
    else:
        yield f"unknown outcome {finding.outcome!r}"


def _capability(signed_report: SignedReport) -> str:
    """The lowest compute capability of the GPUs of the report's host; empty: no GPU."""
    found = hosts.capability(json.loads(signed_report.report.host))
    return ".".join(map(str, found)) if found else ""


def _first(text: str) -> str:
    return (text.splitlines() or ["no reason given"])[0][:300]
