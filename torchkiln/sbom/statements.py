"""Wraps a bill's CycloneDX document in an in-toto statement about the image."""

from __future__ import annotations

import json

from torchkiln.attest.statement import Statement, statement
from torchkiln.sbom.bill import Bill

CYCLONEDX = "https://cyclonedx.org/bom"  # cosign's predicate type


def sbom_statement(bill: Bill) -> Statement:
    """The statement with the CycloneDX document."""
    from torchkiln.sbom.cyclonedx import cyclonedx  # loads slowly, and `verify` needs only the name above

    return statement(bill.tag, bill.image, CYCLONEDX, json.loads(cyclonedx(bill)))


def document_of(sbom: Statement) -> bytes:
    """The document in the statement *sbom*."""
    return sbom.predicate.encode()
