"""The gate for a project's image: the parent image must pass by its own reports, and must not be changed.

docs/adr/0043-the-gate-of-a-project.md says what this proves, and what it does not. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from torchkiln.gate.check_status import check_status
from torchkiln.gate.gate import GateResult, ProjectProof, request_faults
from torchkiln.matrix.policy import Policy
from torchkiln.model.report import SignedReport
from torchkiln.projects.gate.config import ConfigRules, added_variables, config_faults
from torchkiln.projects.gate.entries import Changes
from torchkiln.projects.gate.reports import Reported, report_faults
from torchkiln.projects.smoke.declared import TEST
from torchkiln.smoke.suite import Suite


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectEvidence:
    """What the gate read of a project's image."""

    about: Reported
    os_packages: tuple[str, ...]  # "git-lfs 3.3.0-1", by project.json
    config: Mapping[str, Any] = field(repr=False)  # the whole JSON document of the project's image
    below_config: Mapping[str, Any] = field(repr=False)
    rules: ConfigRules
    layer_faults: tuple[str, ...]  # why the lowest layers are not those of the parent image
    count: int  # number of layers of the parent image
    changes: Changes


def judge_project(
    evidence: ProjectEvidence,
    below: GateResult,
    signed_reports: Sequence[SignedReport],
    policy: Policy,
    suite: Suite,
    *,
    nonce: str | None = None,
    at: datetime | None = None,
) -> GateResult:
    """Check the image of a project against *policy*, which is the policy for the parent image.

    :param below: the gate's result for the parent image, by its own reports.
    :param signed_reports: those of the project's image.
    :param suite: the checks of a project.
    :param nonce: every report of the project's image must have it; None: any nonce, or none.
    :param at: the current time; None: reports may have any age.
    """
    about, changes = evidence.about, evidence.changes
    missing = [(f"{below.tag}: {what}", why) for what, why in below.missing]
    image = [("layers", text) for text in _layer_faults(evidence)]
    image += [
        ("config", text) for text in config_faults(evidence.config, evidence.below_config, evidence.rules)
    ]
    missing += image
    checks = (check for check in suite.checks if check.id != TEST or about.test)
    reports = [(signed_report, dict[str, Any]()) for signed_report in signed_reports]
    statuses = tuple(check_status(check, reports, suite, required=True) for check in checks)
    for signed_report in signed_reports:
        faults = [
            *report_faults(signed_report, about),
            *request_faults(signed_report, replace(policy, suites=()), suite, nonce, at),
        ]
        missing += [(signed_report.name, text) for text in faults]
    missing += [(status.check, text) for status in statuses for text in status.lacks]
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
            layers=evidence.count,
            added=changes.added,
            os_packages=evidence.os_packages,
            replaced=changes.replaced,
            at_start=changes.at_start,
            variables=added_variables(evidence.config, evidence.below_config),
            may_lack=tuple(sorted({name for run in runs for name in run.may_lack})),
            test=about.test,
            changed=bool(image),
            changed_by_packages=changes.of_system,
        ),
    )


def _layer_faults(evidence: ProjectEvidence) -> Iterator[str]:
    yield from evidence.layer_faults
    yield from evidence.changes.faults
