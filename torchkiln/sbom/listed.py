"""Reads the components that a CycloneDX 1.6 document lists.

The reader is strict, and accepts only the form that `cyclonedx.py` writes. It does not use the library that
writes these documents, so that it finds faults of that library.
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
    """Read *document*, in CycloneDX; *where* is its name in messages.

    :raises VerificationFailed: it is invalid or ambiguous.
    """
    try:
        if len(document) > LIMIT:
            raise ValueError(f"longer than {LIMIT} bytes")
        content = json_of(document)
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
        if (content.get("bomFormat"), content.get("specVersion")) != ("CycloneDX", "1.6"):
            raise ValueError("not a CycloneDX 1.6 document")
        return _cyclonedx(content)
    except ValueError as error:
        raise VerificationFailed(f"{where}: {error}", hint=_HINT) from None


def _cyclonedx(content: Mapping[str, Any]) -> SbomContents:
    metadata = content.get("metadata")
    image = metadata.get("component") if isinstance(metadata, dict) else None
    if not isinstance(image, dict) or image.get("type") != "container":
        raise ValueError("metadata.component is not an image")
    items = [_item(part) for part in _components(content) if part.get("type") != "operating-system"]
    return SbomContents(image=_image(_hash(image)), items=tuple(items))


def _components(content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """All components, also nested ones; `json_of` limits the depth."""
    for component in _mappings(content, "components"):
        yield component
        yield from _components(component)


def _item(component: Mapping[str, Any]) -> SbomItem:
    """A component; its fields and its package URL must have the same name and version."""
    name, version, purl = (_text(component, key) for key in ("name", "version", "purl"))
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
    return SbomItem(
        system=system, name=name, version=version, architecture=architecture, sha256=_hash(component)
    )


def _hash(component: Mapping[str, Any]) -> str:
    """The sha256 of *component*; empty if there is none."""
    found = [_text(row, "content") for row in _mappings(component, "hashes") if row.get("alg") == "SHA-256"]
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
