"""Writes and reads clearances: statements of the gate's decision, with policy, checks and reports."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchkiln import __version__
from torchkiln.attest.statement import PUBLICATION, Statement, payload, statement
from torchkiln.errors import KilnError, VerificationFailed
from torchkiln.gate.gate import ClearedImage, GateResult, ProjectProof
from torchkiln.locks.file import from_json, to_json
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.report import SignedReport
from torchkiln.smoke.attestation import statement_of
from torchkiln.smoke.suite import SuiteCheck
from torchkiln.util.schema import DIGEST, TEXT, list_of, mapping, sentences

CLEARANCE = "urn:torchkiln:clearance:1"
_TIER = {"type": "integer", "minimum": 0, "maximum": 3}
_SCHEMA = mapping(
    {
        "suite": DIGEST,
        "checks": list_of(mapping({"check": TEXT, "tier": _TIER})),
        "override": {"type": ["string", "null"]},
        "missing": list_of(mapping({"what": TEXT, "why": TEXT})),
        "reports": list_of(mapping({"gpus": TEXT})),
    },
    names=TEXT,
    locks=list_of(TEXT, maxItems=100),
)


def clearance(cleared: ClearedImage) -> Statement:
    """The statement of the gate's decision; the same decision gives the same bytes."""
    result = cleared.result
    predicate: dict[str, Any] = {
        "tool": __version__,
        "override": cleared.override,
        # A statement of this type is published, too: if an image lacks it, someone removed it.
        "names": PUBLICATION,
        "missing": [{"what": what, "why": why} for what, why in result.missing],
        "policy": {
            "tiers": list(result.policy.tiers),
            "checks": list(result.policy.checks),
            "gpus": list(result.policy.gpus),
            "signed": result.policy.signed,
            "report_age": result.policy.report_age,
            "carry": result.policy.carry,
        },
        "suite": result.suite,
        "checks": [
            {
                "check": status.check,
                "tier": status.tier,
                "demanded": status.required,
                "outcome": status.outcome,
                "fact": status.fact,
            }
            for status in result.statuses
        ],
        "reports": [_cited_report(result, signed_report) for signed_report in result.counted],
    }
    if result.earlier:  # `verify` computes the GPU stack again, from the locks
        predicate["locks"] = [to_json(other.locked).decode() for other in result.earlier]
    if result.project is not None:
        predicate["project"] = project_json(result.project)
    return statement(result.tag, result.image, CLEARANCE, predicate)


def project_json(project: ProjectProof) -> dict[str, Any]:
    """The digests of the reports that prove the parent image, and what no report proves."""
    return {
        "below": {**_cited(project.below), "layers": project.layers},
        **({"in_image": _cited(project.in_image)} if project.in_image else {}),
        "test": list(project.test),
        "added": list(project.added),
        "not_proved": not_proved(project),
    }


def _cited(result: GateResult) -> dict[str, Any]:
    """The checks that passed, and the digests of the reports with them."""
    return {
        "tag": result.tag,
        "digest": result.image,
        "suite": result.suite,
        "passed": list(result.passed),
        "not_applicable": dict(result.left_out),
        "gpus": list(result.gpus),
        "reports": [
            {**_cited_report(result, signed_report), "signers": list(signed_report.signers)}
            for signed_report in result.counted
        ],
    }


def _cited_report(result: GateResult, signed_report: SignedReport) -> dict[str, Any]:
    report = signed_report.report
    return {
        "verdict": report.verdict,
        "when": report.when,
        "gpus": result.gpus_of(report),
        "sha256": hashlib.sha256(payload(statement_of(report))).hexdigest(),
    }


def not_proved(project: ProjectProof) -> dict[str, list[str]]:
    """What no report proves, of the parent image or of the project's image; without empty lists."""
    found = {
        "replaced": project.replaced,
        "os_packages": project.os_packages,
        "at_start": project.at_start,
        "variables": project.variables,
        "may_be_missing": project.may_lack,
    }
    return {name: list(values) for name, values in found.items() if values}


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    suite: Digest
    checks: tuple[SuiteCheck, ...]  # all checks of the suite
    override: str | None
    missing: tuple[tuple[str, str], ...]
    gpus: tuple[str, ...]  # of each report, "2 × NVIDIA H200"; empty: no GPU
    locks: tuple[LockedCell, ...] = ()  # of earlier images whose reports count; unverified


def prevailing(decisions: Sequence[Decision]) -> Decision | None:
    """The last decision without an override, else the last one; None if there are no decisions."""
    return next(reversed([found for found in decisions if not found.override] or list(decisions)), None)


def decision_of(statement: Statement, *, where: str) -> Decision:
    """The content of *statement*, which is not trusted; the inverse of `clearance`.

    :raises VerificationFailed: it is not a clearance.
    """
    if statement.kind != CLEARANCE:
        raise VerificationFailed(f"{where}: {statement.kind!r} is not a clearance")
    content = statement.content
    if wrong := sentences(content, _SCHEMA, where):
        raise VerificationFailed("\n".join(wrong))
    if content["override"] == "" or (content["override"] is None and content["missing"]):
        raise VerificationFailed(f"{where}: it clears an image although checks are missing")
    try:
        locks = tuple(from_json(text.encode()) for text in content.get("locks", ()))
    except KilnError as error:
        raise VerificationFailed(f"{where}: locks: {error.message}") from error
    return Decision(
        suite=parse_digest(content["suite"]),
        checks=tuple(SuiteCheck(id=check["check"], tier=check["tier"]) for check in content["checks"]),
        override=content["override"],
        missing=tuple((item["what"], item["why"]) for item in content["missing"]),
        gpus=tuple(report["gpus"] for report in content["reports"]),
        locks=locks,
    )
