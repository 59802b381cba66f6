"""Writes a bill as a CycloneDX 1.6 document in JSON, and as a statement. Its library loads slowly."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from cyclonedx import spdx as spdx_ids
from cyclonedx.model import AttachedText, HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType, Pedigree
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.license import DisjunctiveLicense, LicenseAcknowledgement, LicenseExpression
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from torchkiln.attest.statement import Statement, statement
from torchkiln.sbom.bill import CYCLONEDX, Bill, BillComponent
from torchkiln.sbom.licences import Licence, joined

_DECLARED = LicenseAcknowledgement.DECLARED


def cyclonedx(bill: Bill) -> bytes:
    """The document; the same bill gives the same bytes."""
    image = _image(bill)
    inside = {wheel.name: _carried(bill, wheel.name) for wheel in bill.components if wheel.kind == "wheel"}
    parts = [_component(part, inside.get(part.name, ())) for part in bill.components if not part.carrier]
    all_parts = [*parts, *(inner for part in parts for inner in part.components)]
    system, _, version = bill.os.partition(" ")
    os = _plain(ComponentType.OPERATING_SYSTEM, system, version)
    bom = Bom(
        serial_number=bill.serial(),
        metadata=BomMetaData(
            timestamp=bill.made,
            component=image,
            tools=ToolRepository(components=[_plain(ComponentType.APPLICATION, "torchkiln", bill.tool)]),
        ),
        components=[os, *parts],
        dependencies=[
            Dependency(image.bom_ref, [Dependency(part.bom_ref) for part in (os, *parts)]),
            *(
                Dependency(part.bom_ref, [Dependency(inner.bom_ref) for inner in part.components])
                for part in (os, *all_parts)
            ),
        ],
        properties=[Property(name="torchkiln:note", value=note) for note in bill.notes],
    )
    return JsonV1Dot6(bom).output_as_string(indent=2).encode() + b"\n"


def sbom_statement(bill: Bill) -> Statement:
    return statement(bill.tag, bill.image, CYCLONEDX, json.loads(cyclonedx(bill)))


def _image(bill: Bill) -> Component:
    return Component(
        name=bill.name,
        version=bill.tag,
        type=ComponentType.CONTAINER,
        bom_ref="image",
        purl=PackageURL.from_string(bill.purl),
        hashes=_hashes(bill.image.partition(":")[2]),
    )


def _hashes(sha256: str) -> list[HashType]:
    return [HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else []


def _plain(kind: ComponentType, name: str, version: str) -> Component:
    return Component(name=name, version=version, type=kind, bom_ref=kind.value)


def _carried(bill: Bill, wheel: str) -> list[Component]:
    return [_component(part, ()) for part in bill.components if part.carrier == wheel]


def _component(part: BillComponent, inside: Iterable[Component]) -> Component:
    properties = {"kind": part.kind, "source": part.source, "evidence": part.evidence, "remark": part.remark}
    return Component(
        name=part.name,
        version=part.version,
        type=ComponentType.APPLICATION if part.kind == "project" else ComponentType.LIBRARY,
        bom_ref=part.ref,
        purl=PackageURL.from_string(part.purl),
        hashes=_hashes(part.sha256),
        licenses=_licences(part.licences),
        components=inside,
        pedigree=_pedigree(part),
        properties=[
            Property(name=f"torchkiln:{name}", value=value) for name, value in properties.items() if value
        ],
    )


def _pedigree(part: BillComponent) -> Pedigree | None:
    """The unmodified component and how this one differs from it; None: it is not modified."""
    if not part.modified:
        return None
    original = Component(
        name=part.name,
        version=part.version,
        type=ComponentType.LIBRARY,
        bom_ref=f"{part.ref}-unmodified",
        purl=PackageURL.from_string(part.purl),
        hashes=_hashes(part.sha256),
    )
    return Pedigree(ancestors=[original], notes=f"modified: {part.modified}")


def _licences(licences: Sequence[Licence]) -> Sequence[DisjunctiveLicense | LicenseExpression]:
    """One expression if all licences are in SPDX's list; else each by its id, or by its name and text."""
    if not any(licence.texts for licence in licences):
        expression = joined(licences)
        if spdx_ids.is_supported_id(expression):
            return [DisjunctiveLicense(id=expression, acknowledgement=_DECLARED)]
        return [LicenseExpression(expression, acknowledgement=_DECLARED)] if expression else []
    return [_licence(licence) for licence in licences]


def _licence(licence: Licence) -> DisjunctiveLicense:
    if spdx_ids.is_supported_id(licence.expression):
        return DisjunctiveLicense(id=licence.expression, acknowledgement=_DECLARED)
    return DisjunctiveLicense(
        name=licence.words,
        text=AttachedText(content="\n\n".join(licence.texts)) if licence.texts else None,
        acknowledgement=_DECLARED,
    )
