"""Wraps a bill's SPDX and CycloneDX documents in in-toto statements about the image."""

from __future__ import annotations

import json

from torchkiln.attest.statement import Statement, statement
from torchkiln.sbom.bill import Bill

SPDX, CYCLONEDX = "https://spdx.dev/Document", "https://cyclonedx.org/bom"  # cosign's predicate types


def sboms(bill: Bill) -> tuple[Statement, Statement]:
    """The statements with the SPDX and the CycloneDX document."""
    from torchkiln.sbom.cyclonedx import cyclonedx  # imported here because they load slowly; `verify`
    from torchkiln.sbom.spdx import spdx  # needs only the names above

    return tuple(  # type: ignore[return-value]
        statement(bill.tag, bill.image, kind, json.loads(document))
        for kind, document in ((SPDX, spdx(bill)), (CYCLONEDX, cyclonedx(bill)))
    )


def document_of(sbom: Statement) -> bytes:
    """The document in the statement *sbom*."""
    return sbom.predicate.encode()
