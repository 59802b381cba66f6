"""Writes a bill as an SPDX 2.3 document in JSON."""

from __future__ import annotations

import io

from license_expression import LicenseExpression, Licensing
from spdx_tools.spdx.model.actor import Actor, ActorType
from spdx_tools.spdx.model.annotation import Annotation, AnnotationType
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

from torchkiln.sbom.bill import Bill, BillComponent
from torchkiln.sbom.licences import LicenceReference, joined

MEDIA_TYPE = "application/spdx+json"
_DOCUMENT, _IMAGE = "SPDXRef-DOCUMENT", "SPDXRef-image"
# It has no list of known licences, so it does not change expressions, which are already valid SPDX.
_LICENSING = Licensing()
_PURPOSES = {"project": PackagePurpose.APPLICATION}


def spdx(bill: Bill) -> bytes:
    """The document; the same bill gives the same bytes."""
    document = Document(
        CreationInfo(
            spdx_version="SPDX-2.3",
            spdx_id=_DOCUMENT,
            name=f"{bill.name}:{bill.tag}",
            document_namespace=f"urn:uuid:{bill.serial('spdx')}",
            creators=[_tool(bill)],
            created=bill.made,
            document_comment="\n".join(bill.notes) or None,
        ),
        packages=[_image(bill), *(_package(part, bill) for part in bill.components)],
        relationships=[
            Relationship(_DOCUMENT, RelationshipType.DESCRIBES, _IMAGE),
            *_contains(bill),
        ],
        extracted_licensing_info=[_extracted(reference) for reference in _references(bill)],
        annotations=[_modified(part, bill) for part in bill.components if part.modified],
    )
    out = io.StringIO()
    # The library's validator takes seconds, so only the tests run it.
    write_document_to_stream(document, out, validate=False, drop_duplicates=False)
    return out.getvalue().encode() + b"\n"


def _tool(bill: Bill) -> Actor:
    return Actor(ActorType.TOOL, f"torchkiln-{bill.tool}")


def _modified(part: BillComponent, bill: Bill) -> Annotation:
    """The modification of *part*, for which SPDX 2.3 has no field; the checksum is of the unmodified file."""
    return Annotation(
        spdx_id=f"SPDXRef-{part.ref}",
        annotation_type=AnnotationType.OTHER,
        annotator=_tool(bill),
        annotation_date=bill.made,
        annotation_comment=f"modified: {part.modified}",
    )


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


def _package(part: BillComponent, bill: Bill) -> Package:
    vendor = bill.os.partition(" ")[0].capitalize()
    comment = [part.remark, f"by /{part.evidence}" if part.evidence else ""]
    return Package(
        spdx_id=f"SPDXRef-{part.ref}",
        name=part.name,
        version=part.version,
        download_location=SpdxNoAssertion(),
        supplier=Actor(ActorType.ORGANIZATION, vendor) if part.kind == "os" else SpdxNoAssertion(),
        files_analyzed=False,
        checksums=[Checksum(ChecksumAlgorithm.SHA256, part.sha256)] if part.sha256 else [],
        source_info=f"built from: {part.source}" if part.source else None,
        license_concluded=SpdxNoAssertion(),
        license_declared=_declared(part),
        copyright_text=SpdxNoAssertion(),
        external_references=[_purl(part.purl)],
        primary_package_purpose=_PURPOSES.get(part.kind, PackagePurpose.LIBRARY),
        comment="; ".join(filter(None, comment)) or None,
    )


def _declared(part: BillComponent) -> LicenseExpression | SpdxNoAssertion:
    return _LICENSING.parse(joined(part.licences)) if part.licences else SpdxNoAssertion()


def _purl(purl: str) -> ExternalPackageRef:
    return ExternalPackageRef(ExternalPackageRefCategory.PACKAGE_MANAGER, "purl", purl)


def _contains(bill: Bill) -> list[Relationship]:
    """The image contains all components, except those that a wheel contains."""
    wheels = {part.name: part.ref for part in bill.components if part.kind == "wheel"}
    return [
        Relationship(
            f"SPDXRef-{wheels[part.carrier]}" if part.carrier else _IMAGE,
            RelationshipType.CONTAINS,
            f"SPDXRef-{part.ref}",
        )
        for part in bill.components
    ]


def _references(bill: Bill) -> list[LicenceReference]:
    licences = (licence for part in bill.components for licence in part.licences)
    found = {reference.id: reference for licence in licences for reference in licence.references}
    return [found[key] for key in sorted(found)]


def _extracted(reference: LicenceReference) -> ExtractedLicensingInfo:
    return ExtractedLicensingInfo(
        license_id=reference.id, license_name=reference.name, extracted_text=reference.text
    )
