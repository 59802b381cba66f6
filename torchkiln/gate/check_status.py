"""Witnesses, one check -> how the check stands: what the reports together say of it, and where it was seen.

A report is taken as what somebody states. What does not apply is computed again from the lock; what was
skipped, was the host's fault or is absent was not passed; what is wrong in one report no other can make good.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torchkiln.model.report import Finding, SignedReport
from torchkiln.smoke import hosts
from torchkiln.smoke.report import values
from torchkiln.smoke.suite import Suite, SuiteCheck
from torchkiln.smoke.verdict import faults, host_fault

#: GPUs that a check of a tier needs at least.
GPUS = {0: 0, 1: 1, 2: 2, 3: 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckStatus:
    """One check of the suite, as the reports together tell of it."""

    check: str
    tier: int
    required: bool
    outcome: Literal["passed", "not-applicable", "missing", "refused"]
    measured: str  # the values that have a bound, as the first report tells them in which it passed
    where: tuple[str, ...]  # names of the reports that say so
    fact: str  # for which it does not apply; else empty
    lacks: tuple[str, ...]  # why it is no proof, and which report says so
    capabilities: tuple[str, ...]  # of the GPUs on which it passed or does not apply, "9.0"


class _Word(NamedTuple):
    """What one report's finding on one check is worth."""

    worth: Literal["passed", "left out", "open", "wrong"]
    text: str  # the fact for which it is left out; else why it is no proof, and who says so
    signed_report: SignedReport
    finding: Finding


def check_status(
    check: SuiteCheck,
    signed_reports: Sequence[SignedReport],
    suite: Suite,
    facts: Mapping[str, Any],
    *,
    required: bool,
) -> CheckStatus:
    """How *check* of *suite* stands for a cell of which *facts* are true.

    :param facts: what the lock says of the image, as `expected.facts_of` puts it.
    """
    words = [
        _judged(check, finding, signed_report, suite, facts)
        for signed_report in signed_reports
        for finding in signed_report.report.findings
        if finding.id == check.id
    ]
    wrong = [word for word in words if word.worth == "wrong"]
    passed = [word for word in words if word.worth == "passed"]
    left_out = [word for word in words if word.worth == "left out"]
    open_ = [word for word in words if word.worth == "open"]
    said, outcome = next(
        (
            (found, named)
            for found, named in (
                (wrong, "refused"),
                (passed, "passed"),
                (left_out, "not-applicable"),
                (open_, "missing"),
            )
            if found
        ),
        ([], "missing"),
    )
    lacks = [word.text for word in said] or ["no report tells of it: it did not run"]
    return CheckStatus(
        check=check.id,
        tier=check.tier,
        required=required,
        outcome=outcome,  # type: ignore[arg-type]
        measured=values(said[0].finding) if outcome == "passed" else "",
        where=tuple(word.signed_report.name for word in said),
        fact=left_out[0].text if outcome == "not-applicable" else "",
        lacks=tuple(lacks) if outcome in ("refused", "missing") else (),
        capabilities=tuple(sorted({_capability(word.signed_report) for word in (*passed, *left_out)} - {""})),
    )


def _judged(
    check: SuiteCheck, finding: Finding, signed_report: SignedReport, suite: Suite, facts: Mapping[str, Any]
) -> _Word:
    host = json.loads(signed_report.report.host)
    if finding.outcome == "skipped":
        return _Word(
            "open", f"skipped: {_first(finding.message)} ({signed_report.name})", signed_report, finding
        )
    if fault := host_fault(finding):
        return _Word("open", f"inconclusive: {fault} ({signed_report.name})", signed_report, finding)
    if wrong := list(_wrongs(check, finding, host, suite, facts)):
        return _Word("wrong", f"{'; '.join(wrong)} ({signed_report.name})", signed_report, finding)
    if finding.outcome == "passed":
        return _Word("passed", "", signed_report, finding)
    return _Word("left out", finding.message, signed_report, finding)


def _wrongs(
    check: SuiteCheck, finding: Finding, host: Mapping[str, Any], suite: Suite, facts: Mapping[str, Any]
) -> Iterator[str]:
    """Why *finding* speaks against the image, or against itself."""
    fact = suite.not_applicable(check.id, facts, hosts.capability(host))
    here, needed = len(hosts.gpus(host)), GPUS[check.tier]
    if finding.tier != check.tier:
        yield f"told as a check of tier {finding.tier}, and is of tier {check.tier}"
    if finding.outcome == "passed":
        yield from faults(finding)
        if fact:
            yield f"passed, although {fact!r} says that it cannot apply"
        if here < needed:
            yield f"passed where {here} GPUs were, and needs {needed}"
    elif finding.outcome == "not-applicable":
        if fact != finding.message:
            yield f"left out for {finding.message!r}, but {f'the fact is {fact!r}' if fact else 'it applies'}"
    elif finding.outcome == "failed":
        yield f"failed: {_first(finding.message)}"
    else:
        yield f"its outcome is {finding.outcome!r}, which is none"


def _capability(signed_report: SignedReport) -> str:
    """The lowest among its GPUs; empty: it has none."""
    found = hosts.capability(json.loads(signed_report.report.host))
    return ".".join(map(str, found)) if found else ""


def _first(text: str) -> str:
    return (text.splitlines() or ["no reason is told"])[0][:300]
