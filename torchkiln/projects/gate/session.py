"""Checks images of a layout, of cells or projects, against the policy."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from torchkiln.gate.gate import GateResult, judge
from torchkiln.gate.inputs import GateInputs
from torchkiln.oci.layout import open_layout
from torchkiln.projects.gate.judge import judge_project
from torchkiln.projects.gate.read import ProjectImage, project_image, read_evidence
from torchkiln.projects.smoke.account import is_project
from torchkiln.projects.smoke.suite import project_suite
from torchkiln.smoke.session import image_and_lock

_TIERS = (0, 1)  # of the suite, in the image of a project with OS packages


def judge_image(inputs: GateInputs, ref: str | None, layout: Path, images: Path) -> GateResult:
    """The gate's result for the image *ref* of *layout*; locks are in *images*.

    :raises ConfigError: there is no such image, or a given file is not a report.
    :raises Stale: there is no lock of it.
    :raises VerificationFailed: a signature is invalid, or a layer is damaged.
    """
    image = open_layout(layout).image(ref)
    if is_project(image):
        return judge_by_reports(inputs, project_image(image, layout, images, inputs.runs.store), images)
    found, _, locked = image_and_lock(ref, layout, images, inputs.runs.store)
    return inputs.judge(found, locked, images)


def judge_by_reports(inputs: GateInputs, project: ProjectImage, images: Path) -> GateResult:
    """The gate's result for the image of *project*, now: by its reports, and those of the parent image.

    :raises ConfigError: a given file is not a report.
    :raises VerificationFailed: a signature is invalid, or a layer is damaged.
    """
    evidence = read_evidence(project, inputs.runs.store)
    locked = project.locked
    image, at = project.image.manifest, datetime.now(timezone.utc)
    policy, below = inputs.policy_for(locked), project.below.manifest
    # A report of an image that does not prove the parent image is judged as the project's: it is refused.
    reports, earlier = inputs.reports_for(below, locked, images)
    of_below = [found for found in reports if found.report.image == below]
    proving = {below, *(other.image for other in earlier)}
    own = [
        found for found in inputs.reports_for(image, locked, images)[0] if found.report.image not in proving
    ]
    in_image, suite = None, inputs.suite
    if project.account.packages:
        of_suite = [found for found in own if found.report.project is None]
        own = [found for found in own if found.report.project is not None]
        tiers = replace(policy, tiers=_TIERS, checks=())
        there = replace(suite, checks=tuple(check for check in suite.checks if not check.of_image))
        found = judge(of_suite, tiers, locked, there, image=image, nonce=inputs.nonce, at=at)
        in_image = replace(found, tag=project.account.name)
    return judge_project(
        evidence,
        judge(of_below, policy, locked, suite, image=below, earlier=earlier, at=at),
        in_image,
        own,
        project_suite(),
        nonce=inputs.nonce,
        at=at,
    )
