"""Reads the smoke reports among the statements attached to an image."""

from __future__ import annotations

from torchkiln.errors import KilnError
from torchkiln.model.report import SignedReport
from torchkiln.publish.attached import AttachedStatements
from torchkiln.smoke.attestation import PREDICATE, report_of


def reports_in(statements: AttachedStatements) -> tuple[list[SignedReport], list[str]]:
    """The reports, named by their number, and the faults of those that cannot be read."""
    reports, faults = [], []
    for number, opened in enumerate(statements.by_kind.get(PREDICATE, ()), start=1):
        name = f"report {number}"
        try:
            report = report_of(opened.statement, where=name)
        except KilnError as error:
            faults.append(error.message)
            continue
        reports.append(
            SignedReport(
                name=name,
                report=report,
                signed=opened.signed,
                signers=opened.signers,
                envelope=opened.envelope,
            )
        )
    return reports, faults
