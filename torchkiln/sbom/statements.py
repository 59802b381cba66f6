"""Wrap a bill's SPDX and CycloneDX documents in in-toto statements about the image."""

from __future__ import annotations

import json

from torchkiln.attest.statement import Statement, statement
from torchkiln.sbom.bill import Bill
from torchkiln.sbom.cyclonedx import cyclonedx
from torchkiln.sbom.spdx import spdx

SPDX, CYCLONEDX = "https://spdx.dev/Document", "https://cyclonedx.org/bom"  # cosign's predicate types


def sboms(bill: Bill) -> tuple[Statement, Statement]:
    """The statements with the SPDX and the CycloneDX document."""
    return tuple(  # type: ignore[return-value]
        statement(bill.tag, bill.image, kind, json.loads(document))
        for kind, document in ((SPDX, spdx(bill)), (CYCLONEDX, cyclonedx(bill)))
    )


def document_of(sbom: Statement) -> bytes:
    """The document in the statement *sbom*."""
    return sbom.predicate.encode()
