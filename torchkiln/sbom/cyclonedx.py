"""Bill -> a CycloneDX 1.6 document, as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cyclonedx import spdx as known
from cyclonedx.model import AttachedText, HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component as Written
from cyclonedx.model.component import ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.license import DisjunctiveLicense, LicenseAcknowledgement, LicenseExpression
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from torchkiln.sbom.bill import Bill, Component
from torchkiln.sbom.licences import Licence, joined

MEDIA_TYPE = "application/vnd.cyclonedx+json"
_DECLARED = LicenseAcknowledgement.DECLARED


def cyclonedx(bill: Bill) -> bytes:
    """The document; the same bill gives the same bytes."""
    image = _image(bill)
    inside = {one.name: _carried(bill, one.name) for one in bill.components if one.kind == "wheel"}
    parts = [_component(one, inside.get(one.name, ())) for one in bill.components if not one.carrier]
    all_of_it = [*parts, *(part for one in parts for part in one.components)]
    system, _, version = bill.os.partition(" ")
    os = _plain(ComponentType.OPERATING_SYSTEM, system, version)
    bom = Bom(
        serial_number=bill.serial("cyclonedx"),
        metadata=BomMetaData(
            timestamp=bill.made,
            component=image,
            tools=ToolRepository(components=[_plain(ComponentType.APPLICATION, "torchkiln", bill.tool)]),
        ),
        components=[os, *parts],
        dependencies=[
            Dependency(image.bom_ref, [Dependency(one.bom_ref) for one in (os, *parts)]),
            *(
                Dependency(one.bom_ref, [Dependency(part.bom_ref) for part in one.components])
                for one in (os, *all_of_it)
            ),
        ],
        properties=[Property(name="torchkiln:note", value=note) for note in bill.notes],
    )
    return JsonV1Dot6(bom).output_as_string(indent=2).encode() + b"\n"


def _image(bill: Bill) -> Written:
    return Written(
        name=bill.name,
        version=bill.tag,
        type=ComponentType.CONTAINER,
        bom_ref="image",
        purl=PackageURL.from_string(bill.purl),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=bill.image.partition(":")[2])],
    )


def _plain(kind: ComponentType, name: str, version: str) -> Written:
    return Written(name=name, version=version, type=kind, bom_ref=kind.value)


def _carried(bill: Bill, wheel: str) -> list[Written]:
    return [_component(one, ()) for one in bill.components if one.carrier == wheel]


def _component(one: Component, inside: Iterable[Written]) -> Written:
    told = {"kind": one.kind, "source": one.source, "told-by": one.told_by, "remark": one.remark}
    return Written(
        name=one.name,
        version=one.version,
        type=ComponentType.LIBRARY,
        bom_ref=one.ref,
        purl=PackageURL.from_string(one.purl),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one.sha256)] if one.sha256 else [],
        licenses=_licences(one.licences),
        components=inside,
        properties=[Property(name=f"torchkiln:{name}", value=value) for name, value in told.items() if value],
    )


def _licences(all_of: Sequence[Licence]) -> Sequence[DisjunctiveLicense | LicenseExpression]:
    """One expression where all is SPDX; else one by one, what is not by name and text."""
    if not any(one.references for one in all_of):
        expression = joined(all_of)
        if known.is_supported_id(expression):
            return [DisjunctiveLicense(id=expression, acknowledgement=_DECLARED)]
        return [LicenseExpression(expression, acknowledgement=_DECLARED)] if expression else []
    return [_licence(one) for one in all_of]


def _licence(one: Licence) -> DisjunctiveLicense:
    if known.is_supported_id(one.expression):
        return DisjunctiveLicense(id=one.expression, acknowledgement=_DECLARED)
    texts = [reference.text for reference in one.references]
    return DisjunctiveLicense(
        name=one.said,
        text=AttachedText(content="\n\n".join(texts)) if texts else None,
        acknowledgement=_DECLARED,
    )
