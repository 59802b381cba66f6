"""Decides whether a report is about the image of a project, its parent image and its test. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from torchkiln.errors import printable
from torchkiln.model.digest import Digest
from torchkiln.model.report import Finding, ProjectRun, SignedReport
from torchkiln.projects.smoke.declared import TEST


@dataclass(frozen=True, kw_only=True, slots=True)
class Reported:
    """What a report must be about."""

    name: str  # of the project
    image: Digest
    parent: str  # the tag of the parent image
    parent_image: Digest
    test: tuple[str, ...]  # the command in the settings in the image
    at_start: tuple[str, ...]  # .pth files in the layers


def report_faults(signed_report: SignedReport, expected: Reported) -> Iterator[str]:
    """Why a report is not of the image of the project."""
    report = signed_report.report
    if report.image != expected.image:
        yield f"is a report of another image: {report.image}, not {expected.image}"
        return
    if (run := report.project) is None:
        yield "is a report about the image of a cell, not about that of a project"
        return
    if report.tag != expected.name:
        yield f"has the tag {report.tag}"
    if (run.parent, run.parent_image) != (expected.parent, expected.parent_image):
        yield (
            f"names another parent image: {run.parent}@{run.parent_image}, not"
            f" {expected.parent}@{expected.parent_image}"
        )
    for finding in report.findings:
        yield from _finding_faults(finding, run, expected)
    unnamed = sorted(set(expected.at_start) - set(run.at_start))
    if unnamed:
        yield f"does not name files that Python runs at each start: {', '.join(unnamed)}"


def _finding_faults(finding: Finding, run: ProjectRun, expected: Reported) -> Iterator[str]:
    if finding.id == TEST and run.test != expected.test:
        ran = printable(" ".join(run.test))[:200] or "none"
        yield f"ran a different test than that of the image's settings: {ran}"
    if finding.id == "import" and finding.outcome == "passed":
        imported = json.loads(finding.measured).get("packages")
        if imported != len(run.named):
            yield f"names {len(run.named)} packages, but imported {imported}"
