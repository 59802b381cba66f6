"""Kept reports, a question -> the report that answers it already: same image, suite and GPUs, young enough.

Only what passed is an answer. What failed, or could not be told for the host's sake, runs again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from torchkiln import hosts
from torchkiln.nouns import Digest, SmokeReport
from torchkiln.verdict import verdict

TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A run that is asked for."""

    image: Digest
    suite: Digest
    runtime: str
    gpus: tuple[str, ...]  # models, one each
    checks: frozenset[str]  # ids


def standing(
    kept: Iterable[SmokeReport], asked: Question, *, at: datetime, days: float
) -> SmokeReport | None:
    """The youngest of *kept* that answers *asked*, if at the time *at* it is not older than *days*."""
    fit = [report for report in kept if _answers(report, asked) and _age(report, at) <= timedelta(days=days)]
    return max(fit, key=lambda report: report.when or "", default=None)


def key_of(report: SmokeReport) -> str:
    """Hex; a later report with the same one takes the place of an earlier."""
    ids = sorted(finding.id for finding in report.findings)
    told = [report.image, report.suite, report.runtime, _models(report), ids]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _answers(report: SmokeReport, asked: Question) -> bool:
    same = (report.image, report.suite, report.runtime) == (asked.image, asked.suite, asked.runtime)
    proved = report.verdict == verdict(report.findings) == "pass"
    ids = {finding.id for finding in report.findings}
    return same and proved and _models(report) == sorted(asked.gpus) and asked.checks <= ids


def _age(report: SmokeReport, at: datetime) -> timedelta:
    """Since its run began; one of the future, or of no known time, is as old as can be."""
    try:
        began = datetime.strptime(report.when or "", TIME).replace(tzinfo=timezone.utc)
    except ValueError:
        return timedelta.max
    return at - began if at >= began else timedelta.max


def _models(report: SmokeReport) -> list[str]:
    return sorted(gpu["name"] for gpu in hosts.gpus(json.loads(report.host)))
