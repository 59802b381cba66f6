"""Bill -> its two documents as statements of the image; and a statement -> the document in it."""

from __future__ import annotations

import json

from torchkiln.attest.statement import Statement, statement
from torchkiln.sbom.bill import Bill
from torchkiln.sbom.cyclonedx import cyclonedx
from torchkiln.sbom.spdx import spdx

SPDX, CYCLONEDX = "https://spdx.dev/Document", "https://cyclonedx.org/bom"  # as cosign calls them


def sboms(bill: Bill) -> tuple[Statement, Statement]:
    """SPDX and CycloneDX."""
    return tuple(  # type: ignore[return-value]
        statement(bill.tag, bill.image, kind, json.loads(document))
        for kind, document in ((SPDX, spdx(bill)), (CYCLONEDX, cyclonedx(bill)))
    )


def document_of(told: Statement) -> bytes:
    """The document, in either format."""
    return told.predicate.encode()
