"""Reads the components that an SPDX 2.3 or CycloneDX 1.6 document lists.

The reader is strict, and accepts only the forms that `spdx.py` and `cyclonedx.py` write. It does not use the
libraries that write these documents, so that it finds faults of those libraries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from packageurl import PackageURL

from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.util.strict_json import json_of

LIMIT = 16 << 20  # bytes of a document; that of 2.7.1 has less than 1 MB
_MAX_ITEMS = 100_000  # maximum items of a list
_HEX = re.compile(r"[0-9a-f]{64}")
_HINT = "do not use this document; get it again from the image's registry"
System = Literal["python", "os", "toolkit", "other"]
TOOLKIT = "nvidia-cuda-redist"  # the namespace in package URLs of NVIDIA's toolkit archives
_SYSTEMS: Mapping[str, System] = {"pypi": "python", "deb": "os"}


@dataclass(frozen=True, kw_only=True, slots=True)
class SbomItem:
    """A component, as a document lists it or as it was found in an image."""

    system: System
    name: str
    version: str
    architecture: str = ""  # of an OS package
    sha256: str = ""  # hex; empty: unknown


@dataclass(frozen=True, kw_only=True, slots=True)
class SbomContents:
    """The components that a document lists, and its image."""

    image: Digest
    items: tuple[SbomItem, ...]


def listed(document: bytes, *, where: str = "SBOM") -> SbomContents:
    """Read *document*, in SPDX or CycloneDX; *where* is its name in messages.

    :raises VerificationFailed: it is invalid or ambiguous.
    """
    try:
        if len(document) > LIMIT:
            raise ValueError(f"longer than {LIMIT} bytes")
        content = json_of(document)
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
        if content.get("spdxVersion") == "SPDX-2.3":
            return _spdx(content)
        if content.get("bomFormat") == "CycloneDX" and content.get("specVersion") == "1.6":
            return _cyclonedx(content)
        raise ValueError("neither SPDX 2.3 nor CycloneDX 1.6")
    except ValueError as error:
        raise VerificationFailed(f"{where}: {error}", hint=_HINT) from None


def _spdx(content: Mapping[str, Any]) -> SbomContents:
    packages = list(_mappings(content, "packages"))
    images = [package for package in packages if package.get("primaryPackagePurpose") == "CONTAINER"]
    if len(images) != 1:
        raise ValueError(f"must describe one image, not {len(images)}")
    described = {
        _text(relationship, "relatedSpdxElement")
        for relationship in _mappings(content, "relationships")
        if relationship.get("relationshipType") == "DESCRIBES"
    }
    if described != {_text(images[0], "SPDXID")}:
        raise ValueError("its DESCRIBES relationship does not name its image")
    items = [
        _item(
            package,
            "versionInfo",
            _spdx_purl(package),
            _hash(package, "checksums", "SHA256", "checksumValue"),
        )
        for package in packages
        if package is not images[0]
    ]
    digest = _hash(images[0], "checksums", "SHA256", "checksumValue")
    return SbomContents(image=_image(digest), items=tuple(items))


def _spdx_purl(package: Mapping[str, Any]) -> str:
    purls = [
        _text(reference, "referenceLocator")
        for reference in _mappings(package, "externalRefs")
        if reference.get("referenceType") == "purl"
    ]
    if len(purls) != 1:
        raise ValueError(f"{_called(package)}: must have one package URL, not {len(purls)}")
    return purls[0]


def _cyclonedx(content: Mapping[str, Any]) -> SbomContents:
    metadata = content.get("metadata")
    image = metadata.get("component") if isinstance(metadata, dict) else None
    if not isinstance(image, dict) or image.get("type") != "container":
        raise ValueError("metadata.component is not an image")
    items = [
        _item(part, "version", _text(part, "purl"), _hash(part, "hashes", "SHA-256", "content"))
        for part in _components(content)
        if part.get("type") != "operating-system"
    ]
    return SbomContents(image=_image(_hash(image, "hashes", "SHA-256", "content")), items=tuple(items))


def _components(content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """All components, also nested ones; `json_of` limits the depth."""
    for component in _mappings(content, "components"):
        yield component
        yield from _components(component)


def _item(component: Mapping[str, Any], version_key: str, purl: str, sha256: str) -> SbomItem:
    """A component; its fields and its package URL must have the same name and version."""
    name, version = _text(component, "name"), _text(component, version_key)
    try:
        parsed = PackageURL.from_string(purl)
    except ValueError:
        raise ValueError(f"{_called(component)}: invalid package URL: {purl[:80]!r}") from None
    of_toolkit = parsed.type == "generic" and parsed.namespace == TOOLKIT
    system: System = "toolkit" if of_toolkit else _SYSTEMS.get(parsed.type, "other")
    if (parsed.name.lower() if system == "other" else parsed.name, parsed.version) != (
        name.lower() if system == "other" else name,
        version,
    ):
        raise ValueError(f"{_called(component)} {version[:80]}: package URL mismatch: {purl[:120]!r}")
    qualifiers = parsed.qualifiers if isinstance(parsed.qualifiers, dict) else {}
    architecture = qualifiers.get("arch", "") if system == "os" else ""
    return SbomItem(system=system, name=name, version=version, architecture=architecture, sha256=sha256)


def _hash(component: Mapping[str, Any], key: str, algorithm: str, content: str) -> str:
    name = "algorithm" if key == "checksums" else "alg"
    found = [_text(row, content) for row in _mappings(component, key) if row.get(name) == algorithm]
    if len(found) > 1 or (found and not _HEX.fullmatch(found[0])):
        raise ValueError(f"{_called(component)}: invalid sha256, or more than one")
    return found[0] if found else ""


def _image(sha256: str) -> Digest:
    if not sha256:
        raise ValueError("the image has no digest")
    return parse_digest(f"sha256:{sha256}")


def _mappings(value: Mapping[str, Any], key: str) -> Iterator[Mapping[str, Any]]:
    found = value.get(key, [])
    if not isinstance(found, list) or len(found) > _MAX_ITEMS:
        raise ValueError(f"{key}: not a list, or too long")
    for item in found:
        if not isinstance(item, dict):
            raise ValueError(f"{key}: not a list of JSON objects")
        yield item


def _text(value: Mapping[str, Any], key: str) -> str:
    found = value.get(key)
    if not isinstance(found, str) or not found or len(found) > 4000:
        raise ValueError(f"{_called(value)}: {key}: must be a text of 1 to 4000 characters")
    return found


def _called(value: Mapping[str, Any]) -> str:
    return str(value.get("name", "a component"))[:80]
