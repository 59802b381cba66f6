"""Read the reports in docs/proofs, and decide whether each belongs to the image that its lock gives today.

A report names the digest of its image. When the base, rootfs/ or wheels change, the lock gives a different
digest, and the report belongs to an earlier image: it is still shown, but the gate does not accept it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from torchkiln.engine.known import predicted_digest
from torchkiln.gate.inputs import KeptReport, kept_reports, locks_in
from torchkiln.locks.lock import load_locked
from torchkiln.matrix import facts as facts_of
from torchkiln.matrix import matrix as matrix_of
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.report import SignedReport, SmokeReport
from torchkiln.plan.load import plan_cell
from torchkiln.smoke import hosts
from torchkiln.smoke.suite import Suite
from torchkiln.util.places import ROOT

IMAGES, PROOFS = ROOT / "images", ROOT / "docs/proofs"


@cache
def kept_in(folder: Path) -> tuple[KeptReport, ...]:
    """The reports in *folder*, signed ones verified with the key beside each; the folder is read once."""
    return kept_reports(folder)


@cache
def earlier_locks(folder: Path) -> dict[Digest, LockedCell]:
    """The locks of earlier images in *folder*; it is read once."""
    return locks_in(folder)


def proofs(folder: Path) -> list[SignedReport]:
    """The signed reports in *folder*."""
    return [found.signed for found in kept_in(folder) if found.signed.signed]


def on_gpus(signed_reports: Sequence[SignedReport]) -> list[SignedReport]:
    """The reports of runs on a host with GPUs."""
    return [signed for signed in signed_reports if hosts.gpus(json.loads(signed.report.host))]


def without_gpus(folder: Path) -> list[SignedReport]:
    """The unsigned reports in *folder* of runs in an image without a GPU."""
    found = [one.signed for one in kept_in(folder) if not one.signed.signed]
    return [signed for signed in found if not hosts.gpus(json.loads(signed.report.host))]


def as_declared_by(reports: Sequence[SignedReport], suite: Suite) -> Suite:
    """*suite* with the digest, values and bounds of *reports*, which were made with an earlier suite.

    A report does not contain its suite, so the bounds in the report count as the declared bounds.
    """
    latest = max(reports, key=lambda signed: signed.report.when or "").report
    values = {
        finding.id: {
            name: json.loads(finding.threshold).get(name, {"type": "any"})
            for name in json.loads(finding.measured)
        }
        for signed in sorted(reports, key=lambda signed: signed.report.when or "")
        for finding in signed.report.findings
        if finding.outcome == "passed"
    }
    checks = (replace(check, values=values.get(check.id, check.values)) for check in suite.checks)
    return replace(suite, digest=latest.suite, checks=tuple(checks))


@cache
def present(tag: str) -> Digest | None:
    """The digest of the image that the lock of *tag* gives today; None: no lock, or it records no layers."""
    if not (IMAGES / tag / "lock.json").is_file():
        return None
    matrix, facts = tables()
    return predicted_digest(plan_cell(load_locked(IMAGES, tag).resolution.cell, matrix, facts, images=IMAGES))


@cache
def tables() -> tuple[Matrix, Facts]:
    """The checkout's matrix and the facts."""
    facts = facts_of.load()
    return matrix_of.read(ROOT / "matrix.yaml", facts), facts


def short(report: SmokeReport) -> str:
    """The first twelve digits of the image's digest; empty if the report is not of an image."""
    return (report.image or "").removeprefix("sha256:")[:12]


def is_earlier(report: SmokeReport) -> bool:
    """Whether *report* is of a different image than the one that its lock gives today."""
    return report.image is not None and report.image != present(report.tag or "")


def latest_earlier(reports: Sequence[SignedReport], digest: Digest | None) -> list[SignedReport]:
    """The *reports* of the image that ran last, except *digest*."""
    earlier = [signed for signed in reports if signed.report.image != digest]
    last = max(earlier, key=lambda signed: signed.report.when or "", default=None)
    return [signed for signed in earlier if last and signed.report.image == last.report.image]
