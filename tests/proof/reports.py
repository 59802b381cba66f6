"""The reports of the headline image that are in the repository."""

from __future__ import annotations

from typing import Any

from tests.proof.headline import TAG
from tools.kept import PROOFS, proofs
from torchkiln.matrix import facts, matrix
from torchkiln.model.report import SignedReport
from torchkiln.smoke.suite import load_suite
from torchkiln.util.places import ROOT


def committed_reports(image: dict[str, Any], *, current: bool) -> list[SignedReport]:
    """Reports of earlier images; if *current*, those of *image*, or none if a required check is missing."""
    found = [
        proof
        for proof in proofs(PROOFS)
        if proof.report.tag == TAG and (proof.report.image == image["digest"]) is current
    ]
    ran = {finding.id for proof in found for finding in proof.report.findings}
    return found if not current or required_checks() <= ran else []


def required_checks() -> set[str]:
    """The checks that the matrix's policy requires."""
    policy = matrix.read(ROOT / "matrix.yaml", facts.load()).policy
    checks = load_suite(ROOT / "smoke_tests").checks
    return {check.id for check in checks if check.tier in policy.tiers} | set(policy.checks)
