"""Reads smoke reports among the statements attached to an image."""

from __future__ import annotations

from collections.abc import Sequence

from torchkiln.attest.signers import OpenedStatement
from torchkiln.errors import KilnError
from torchkiln.model.report import SignedReport
from torchkiln.smoke.attestation import report_of


def reports_in(
    statements: Sequence[OpenedStatement], name: str = "report"
) -> tuple[list[SignedReport], list[str]]:
    """The reports, called *name* and their number, and the faults of those that cannot be read."""
    reports, faults = [], []
    for number, opened in enumerate(statements, start=1):
        where = f"{name} {number}"
        try:
            report = report_of(opened.statement, where=where)
        except KilnError as error:
            faults.append(error.message)
            continue
        reports.append(
            SignedReport(
                name=where,
                report=report,
                signed=opened.signed,
                signers=opened.signers,
                envelope=opened.envelope,
            )
        )
    return reports, faults
