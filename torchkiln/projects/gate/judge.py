"""The gate for a project's image: the parent image must pass by its own reports, and must not be changed.

ADR 58 (docs/adr) says what this proves, and what it does not. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from torchkiln.errors import printable
from torchkiln.gate.check_status import check_status
from torchkiln.gate.gate import GateResult, ProjectProof, request_faults
from torchkiln.model.digest import Digest
from torchkiln.model.project import TEST
from torchkiln.model.report import Finding, ProjectRun, SignedReport
from torchkiln.projects.gate.config import ConfigRules, added_variables, config_faults
from torchkiln.smoke.suite import Suite

_BUILD = "torchkiln project build DIR"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reported:
    """What a report must be about."""

    name: str  # of the project
    image: Digest
    parent: str  # the tag of the parent image
    parent_image: Digest
    test: tuple[str, ...]  # the command in the settings in the image
    at_start: tuple[str, ...]  # .pth files in the layers


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectEvidence:
    """What the gate read of a project's image."""

    about: Reported
    added: tuple[str, ...]  # wheels, by project.json, "datasets 4.8.5"
    os_packages: tuple[str, ...]  # "git-lfs 3.3.0-1", by project.json
    replaced: tuple[str, ...]  # packages of the parent image, and sentences about overwritten files
    config: Mapping[str, Any] = field(repr=False)  # the whole JSON document of the project's image
    below_config: Mapping[str, Any] = field(repr=False)
    rules: ConfigRules
    layer_faults: tuple[str, ...]  # why entries or layers are refused
    build_faults: tuple[str, ...]  # why the layers below the code are not those that this machine built
    count: int  # number of layers of the parent image

    @property
    def config_faults(self) -> tuple[str, ...]:
        """How the configuration breaks the rules."""
        return tuple(config_faults(self.config, self.below_config, self.rules))


def judge_project(
    evidence: ProjectEvidence,
    below: GateResult,
    in_image: GateResult | None,
    signed_reports: Sequence[SignedReport],
    suite: Suite,
    *,
    nonce: str | None = None,
    at: datetime | None = None,
) -> GateResult:
    """Check the image of a project against the policy for its parent image.

    :param below: the gate's result for the parent image, by its own reports.
    :param in_image: as in `ProjectProof`.
    :param signed_reports: those of the project's checks.
    :param suite: the checks of a project.
    :param nonce: every report of the project's image must have it; None: any nonce, or none.
    :param at: the current time; None: reports may have any age.
    """
    about, policy = evidence.about, below.policy
    image = [("layers", text) for text in (*evidence.layer_faults, *evidence.build_faults)]
    image += [("config", text) for text in evidence.config_faults]
    missing = [(f"{below.tag}: {what}", why) for what, why in below.missing] + image
    checks = (check for check in suite.checks if check.id != TEST or about.test)
    reports = [(signed_report, dict[str, Any]()) for signed_report in signed_reports]
    statuses = tuple(check_status(check, reports, suite, required=True) for check in checks)
    for signed_report in signed_reports:
        faults = [
            *_report_faults(signed_report, about),
            *request_faults(signed_report, replace(policy, suites=()), suite, nonce, at),
        ]
        missing += [(signed_report.name, text) for text in faults]
    missing += [(status.check, text) for status in statuses for text in status.lacks]
    missing += _of_tiers(in_image)
    runs = [signed.report.project for signed in signed_reports if signed.report.project]
    return GateResult(
        tag=about.name,
        image=about.image,
        suite=suite.digest,
        policy=policy,
        statuses=statuses,
        missing=tuple(missing),
        signed_reports=tuple(signed_reports),
        project=ProjectProof(
            below=below,
            in_image=in_image,
            layers=evidence.count,
            added=evidence.added,
            os_packages=evidence.os_packages,
            replaced=evidence.replaced,
            at_start=about.at_start,
            variables=added_variables(evidence.config, evidence.below_config),
            may_lack=tuple(sorted({name for run in runs for name in run.may_lack})),
            test=about.test,
            hint=_hint(evidence) if image else "",
        ),
    )


def _hint(evidence: ProjectEvidence) -> str:
    if len(evidence.build_faults) < len(evidence.layer_faults) + len(evidence.config_faults):
        return f"remove what is listed above, and build the project again: {_BUILD}"
    return f"build the project on this machine, from its lock, and use that image: {_BUILD} --output LAYOUT"


def _of_tiers(in_image: GateResult | None) -> Iterator[tuple[str, str]]:
    """What is missing of the suite's checks in the image of a project with OS packages."""
    if in_image is not None and not in_image.signed_reports:
        yield (
            "OS packages",
            "reports of the parent image do not prove that torch works with them, and there is no report of"
            " tiers 0 and 1 in this image",
        )
    elif in_image is not None:
        yield from ((f"in this image: {what}", why) for what, why in in_image.missing)


def _report_faults(signed_report: SignedReport, expected: Reported) -> Iterator[str]:
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
