"""Find a kept report that can replace a run: same image, suite, runtime and GPUs, recent, and passed.

A later failure of any check makes earlier passes unusable, because the image is at fault. A later
inconclusive run, in which the host is at fault, makes only the passes of its inconclusive checks unusable.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from torchkiln.model.digest import Digest
from torchkiln.model.report import SmokeReport
from torchkiln.smoke import hosts
from torchkiln.smoke.verdict import verdict

TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A requested run; a kept report with the same image, suite, runtime and GPUs can replace it."""

    image: Digest
    suite: Digest
    runtime: str
    gpus: tuple[str, ...]  # the model of each GPU
    checks: frozenset[str]  # ids


def reusable_report(
    kept: Iterable[SmokeReport], question: Question, *, at: datetime, days: float
) -> SmokeReport | None:
    """The latest report that can replace the run *question* and is at most *days* old at the time *at*.

    None if there is none, or if a later run of the same image on the same GPUs makes it unusable: a check
    failed in that run, or a requested check was inconclusive.
    """
    same = [
        report for report in kept if _is_same(report, question) and age_of(report, at) <= timedelta(days=days)
    ]
    passed = [report for report in same if _passed(report) and question.checks <= _ids(report)]
    best = max(passed, key=_when, default=None)
    later = [report for report in same if best and _when(report) >= _when(best)]
    return None if any(_voids(report, question.checks) for report in later) else best


def key_of(report: SmokeReport) -> str:
    """The key of *report* in the cache, in hex; a later report with the same key replaces an earlier one.

    A pass or a failure replaces an earlier pass or failure of the same checks. An inconclusive report only
    replaces a report with the same outcomes, so that no failure and no pass is lost.
    """
    checks: Sequence[object] = sorted(_ids(report))
    if report.verdict == "inconclusive":
        checks = sorted([finding.id, finding.outcome] for finding in report.findings)
    parts = [report.image, report.suite, report.runtime, _models(report), checks]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def start_of(report: SmokeReport) -> datetime | None:
    """When the run started; None: unknown."""
    try:
        return datetime.strptime(report.when or "", TIME).replace(tzinfo=timezone.utc)
    except ValueError:
        return None


def age_of(report: SmokeReport, at: datetime) -> timedelta:
    """The time from the start of the run to *at*; timedelta.max if the start is unknown or in the future."""
    start = start_of(report)
    return at - start if start and at >= start else timedelta.max


def _is_same(report: SmokeReport, question: Question) -> bool:
    run = (report.image, report.suite, report.runtime, _models(report))
    return run == (question.image, question.suite, question.runtime, sorted(question.gpus))


def _passed(report: SmokeReport) -> bool:
    return report.verdict == verdict(report.findings) == "pass"


def _voids(report: SmokeReport, checks: frozenset[str]) -> bool:
    """Whether *report* makes an earlier pass of *checks* unusable."""
    if report.verdict != verdict(report.findings) or report.verdict == "fail":
        return True
    return any(
        finding.id in checks and finding.outcome in ("failed", "skipped") for finding in report.findings
    )


def _ids(report: SmokeReport) -> set[str]:
    return {finding.id for finding in report.findings}


def _when(report: SmokeReport) -> str:
    return report.when or ""


def _models(report: SmokeReport) -> list[str]:
    return sorted(gpu["name"] for gpu in hosts.gpus(json.loads(report.host)))
