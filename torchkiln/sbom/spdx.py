"""Bill -> an SPDX 2.3 document, as JSON."""

from __future__ import annotations

import io

from license_expression import LicenseExpression, Licensing
from spdx_tools.spdx.model.actor import Actor, ActorType
from spdx_tools.spdx.model.checksum import Checksum, ChecksumAlgorithm
from spdx_tools.spdx.model.document import CreationInfo, Document
from spdx_tools.spdx.model.extracted_licensing_info import ExtractedLicensingInfo
from spdx_tools.spdx.model.package import (
    ExternalPackageRef,
    ExternalPackageRefCategory,
    Package,
    PackagePurpose,
)
from spdx_tools.spdx.model.relationship import Relationship, RelationshipType
from spdx_tools.spdx.model.spdx_no_assertion import SpdxNoAssertion
from spdx_tools.spdx.writer.json.json_writer import write_document_to_stream

from torchkiln.sbom.bill import Bill, Component
from torchkiln.sbom.licences import Reference, joined

MEDIA_TYPE = "application/spdx+json"
_DOCUMENT, _IMAGE = "SPDXRef-DOCUMENT", "SPDXRef-image"
# Without a list of licences: what comes is SPDX already, and must stay as it is spelled.
_LICENSING = Licensing()


def spdx(bill: Bill) -> bytes:
    """The document; the same bill gives the same bytes."""
    document = Document(
        CreationInfo(
            spdx_version="SPDX-2.3",
            spdx_id=_DOCUMENT,
            name=f"{bill.name}:{bill.tag}",
            document_namespace=f"urn:uuid:{bill.serial('spdx')}",
            creators=[Actor(ActorType.TOOL, f"torchkiln-{bill.tool}")],
            created=bill.made,
            document_comment="\n".join(bill.notes) or None,
        ),
        packages=[_image(bill), *(_package(one, bill) for one in bill.components)],
        relationships=[
            Relationship(_DOCUMENT, RelationshipType.DESCRIBES, _IMAGE),
            *_contains(bill),
        ],
        extracted_licensing_info=[_extracted(one) for one in _references(bill)],
    )
    out = io.StringIO()
    # Its validator takes seconds; the tests run it, and `licences` lets nothing through that it would refuse.
    write_document_to_stream(document, out, validate=False, drop_duplicates=False)
    return out.getvalue().encode() + b"\n"


def _image(bill: Bill) -> Package:
    return Package(
        spdx_id=_IMAGE,
        name=bill.name,
        version=bill.tag,
        download_location=SpdxNoAssertion(),
        files_analyzed=False,
        checksums=[Checksum(ChecksumAlgorithm.SHA256, bill.image.partition(":")[2])],
        license_concluded=SpdxNoAssertion(),
        license_declared=SpdxNoAssertion(),
        copyright_text=SpdxNoAssertion(),
        external_references=[_purl(bill.purl)],
        primary_package_purpose=PackagePurpose.CONTAINER,
        comment=f"An image of {bill.os}. The checksum is its manifest's digest.",
    )


def _package(one: Component, bill: Bill) -> Package:
    vendor = bill.os.partition(" ")[0].capitalize()
    comment = [one.remark, f"by /{one.told_by}" if one.told_by else ""]
    return Package(
        spdx_id=f"SPDXRef-{one.ref}",
        name=one.name,
        version=one.version,
        download_location=SpdxNoAssertion(),
        supplier=Actor(ActorType.ORGANIZATION, vendor) if one.kind == "os" else SpdxNoAssertion(),
        files_analyzed=False,
        checksums=[Checksum(ChecksumAlgorithm.SHA256, one.sha256)] if one.sha256 else [],
        source_info=f"built from: {one.source}" if one.source else None,
        license_concluded=SpdxNoAssertion(),
        license_declared=_declared(one),
        copyright_text=SpdxNoAssertion(),
        external_references=[_purl(one.purl)],
        primary_package_purpose=PackagePurpose.LIBRARY,
        comment="; ".join(filter(None, comment)) or None,
    )


def _declared(one: Component) -> LicenseExpression | SpdxNoAssertion:
    return _LICENSING.parse(joined(one.licences)) if one.licences else SpdxNoAssertion()


def _purl(purl: str) -> ExternalPackageRef:
    return ExternalPackageRef(ExternalPackageRefCategory.PACKAGE_MANAGER, "purl", purl)


def _contains(bill: Bill) -> list[Relationship]:
    """The image contains all; what came in a wheel, that wheel contains."""
    wheels = {one.name: one.ref for one in bill.components if one.kind == "wheel"}
    return [
        Relationship(
            f"SPDXRef-{wheels[one.carrier]}" if one.carrier else _IMAGE,
            RelationshipType.CONTAINS,
            f"SPDXRef-{one.ref}",
        )
        for one in bill.components
    ]


def _references(bill: Bill) -> list[Reference]:
    found = {ref.id: ref for one in bill.components for said in one.licences for ref in said.references}
    return [found[key] for key in sorted(found)]


def _extracted(one: Reference) -> ExtractedLicensingInfo:
    return ExtractedLicensingInfo(license_id=one.id, license_name=one.name, extracted_text=one.text)
