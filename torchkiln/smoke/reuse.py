"""Kept reports, a question -> the report that answers it already: same image, suite and GPUs, young enough.

Only what passed is an answer. What failed, or could not be told for the host's sake, runs again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from torchkiln.model.digest import Digest
from torchkiln.model.report import SmokeReport
from torchkiln.smoke import hosts
from torchkiln.smoke.verdict import verdict

TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A run that is asked for."""

    image: Digest
    suite: Digest
    runtime: str
    gpus: tuple[str, ...]  # models, one each
    checks: frozenset[str]  # ids


def reusable_report(
    kept: Iterable[SmokeReport], asked: Question, *, at: datetime, days: float
) -> SmokeReport | None:
    """The youngest of *kept* that answers *asked*, if at the time *at* it is not older than *days*.

    None where a later run of the same image on the same GPUs did not pass.
    """
    same = [
        report for report in kept if _is_same(report, asked) and age_of(report, at) <= timedelta(days=days)
    ]
    fit = [report for report in same if _passed(report) and asked.checks <= _ids(report)]
    best = max(fit, key=_when, default=None)
    later = [report for report in same if best and _when(report) >= _when(best)]
    return best if all(map(_passed, later)) else None


def key_of(report: SmokeReport) -> str:
    """Hex; a later report with the same one takes the place of an earlier."""
    told = [report.image, report.suite, report.runtime, _models(report), sorted(_ids(report))]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def age_of(report: SmokeReport, at: datetime) -> timedelta:
    """Since its run began; one of the future, or of no known time, is as old as can be."""
    try:
        began = datetime.strptime(report.when or "", TIME).replace(tzinfo=timezone.utc)
    except ValueError:
        return timedelta.max
    return at - began if at >= began else timedelta.max


def _is_same(report: SmokeReport, asked: Question) -> bool:
    told = (report.image, report.suite, report.runtime, _models(report))
    return told == (asked.image, asked.suite, asked.runtime, sorted(asked.gpus))


def _passed(report: SmokeReport) -> bool:
    return report.verdict == verdict(report.findings) == "pass"


def _ids(report: SmokeReport) -> set[str]:
    return {finding.id for finding in report.findings}


def _when(report: SmokeReport) -> str:
    return report.when or ""


def _models(report: SmokeReport) -> list[str]:
    return sorted(gpu["name"] for gpu in hosts.gpus(json.loads(report.host)))
