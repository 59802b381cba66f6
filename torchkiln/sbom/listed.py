"""An SPDX or CycloneDX document, whoever wrote it -> what it lists, or why it cannot be read.

Read by the letter and narrowly: what `spdx` and `cyclonedx` here write, and what says the same. The libraries
that write are not used, so that a fault of theirs is seen.
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

LIMIT = 16 << 20  # bytes of a document; that of 2.7.1 has less than one million
_MOST = 100_000  # components
_HEX = re.compile(r"[0-9a-f]{64}")
_HINT = "get the document again from where the image is; do not use this one"
System = Literal["python", "os", "toolkit", "other"]
TOOLKIT = "nvidia-cuda-redist"  # the package URLs' namespace of archives of NVIDIA's toolkit
_SYSTEMS: Mapping[str, System] = {"pypi": "python", "deb": "os"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """A component as a document lists it, or as it was read in an image."""

    system: System
    name: str
    version: str
    architecture: str = ""  # of a package of the OS
    sha256: str = ""  # hex; empty: not told


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """What a document lists, and of which image."""

    image: Digest
    items: tuple[Item, ...]


def listed(document: bytes, *, where: str = "SBOM") -> Listed:
    """What *document* lists, in either format.

    :raises VerificationFailed: it cannot be read in one way only; names *where*.
    """
    try:
        if len(document) > LIMIT:
            raise ValueError(f"longer than {LIMIT} bytes")
        told = json_of(document)
        if not isinstance(told, dict):
            raise ValueError("not a mapping")
        if told.get("spdxVersion") == "SPDX-2.3":
            return _spdx(told)
        if told.get("bomFormat") == "CycloneDX" and told.get("specVersion") == "1.6":
            return _cyclonedx(told)
        raise ValueError("neither SPDX 2.3 nor CycloneDX 1.6")
    except ValueError as error:
        raise VerificationFailed(f"{where}: {error}", hint=_HINT) from None


def _spdx(told: Mapping[str, Any]) -> Listed:
    packages = list(_mappings(told, "packages"))
    images = [one for one in packages if one.get("primaryPackagePurpose") == "CONTAINER"]
    if len(images) != 1:
        raise ValueError(f"describes {len(images)} images, not one")
    described = {
        _text(one, "relatedSpdxElement")
        for one in _mappings(told, "relationships")
        if one.get("relationshipType") == "DESCRIBES"
    }
    if described != {_text(images[0], "SPDXID")}:
        raise ValueError("does not describe the image that is in it")
    items = [
        _item(one, "versionInfo", _spdx_purl(one), _hash(one, "checksums", "SHA256", "checksumValue"))
        for one in packages
        if one is not images[0]
    ]
    digest = _hash(images[0], "checksums", "SHA256", "checksumValue")
    return Listed(image=_image(digest), items=tuple(items))


def _spdx_purl(package: Mapping[str, Any]) -> str:
    purls = [
        _text(one, "referenceLocator")
        for one in _mappings(package, "externalRefs")
        if one.get("referenceType") == "purl"
    ]
    if len(purls) != 1:
        raise ValueError(f"{_called(package)}: has {len(purls)} package URLs, not one")
    return purls[0]


def _cyclonedx(told: Mapping[str, Any]) -> Listed:
    metadata = told.get("metadata")
    image = metadata.get("component") if isinstance(metadata, dict) else None
    if not isinstance(image, dict) or image.get("type") != "container":
        raise ValueError("describes no image")
    items = [
        _item(one, "version", _text(one, "purl"), _hash(one, "hashes", "SHA-256", "content"))
        for one in _components(told)
        if one.get("type") != "operating-system"
    ]
    return Listed(image=_image(_hash(image, "hashes", "SHA-256", "content")), items=tuple(items))


def _components(told: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Those within others too; `json_of` has seen to it that they are not deep."""
    for one in _mappings(told, "components"):
        yield one
        yield from _components(one)


def _item(component: Mapping[str, Any], version_key: str, purl: str, sha256: str) -> Item:
    """Where name and version stand twice, in the fields and in the package URL, they must be the same."""
    name, version = _text(component, "name"), _text(component, version_key)
    try:
        parsed = PackageURL.from_string(purl)
    except ValueError:
        raise ValueError(f"{_called(component)}: no package URL: {purl[:80]!r}") from None
    of_toolkit = parsed.type == "generic" and parsed.namespace == TOOLKIT
    system: System = "toolkit" if of_toolkit else _SYSTEMS.get(parsed.type, "other")
    if (parsed.name.lower() if system == "other" else parsed.name, parsed.version) != (
        name.lower() if system == "other" else name,
        version,
    ):
        raise ValueError(f"{_called(component)} {version[:80]}: its package URL is another's: {purl[:120]!r}")
    qualifiers = parsed.qualifiers if isinstance(parsed.qualifiers, dict) else {}
    architecture = qualifiers.get("arch", "") if system == "os" else ""
    return Item(system=system, name=name, version=version, architecture=architecture, sha256=sha256)


def _hash(component: Mapping[str, Any], key: str, algorithm: str, content: str) -> str:
    name = "algorithm" if key == "checksums" else "alg"
    found = [_text(one, content) for one in _mappings(component, key) if one.get(name) == algorithm]
    if len(found) > 1 or (found and not _HEX.fullmatch(found[0])):
        raise ValueError(f"{_called(component)}: its sha256 is none, or several")
    return found[0] if found else ""


def _image(sha256: str) -> Digest:
    if not sha256:
        raise ValueError("does not tell the image's digest")
    return parse_digest(f"sha256:{sha256}")


def _mappings(value: Mapping[str, Any], key: str) -> Iterator[Mapping[str, Any]]:
    found = value.get(key, [])
    if not isinstance(found, list) or len(found) > _MOST:
        raise ValueError(f"{key}: not a list, or too long")
    for one in found:
        if not isinstance(one, dict):
            raise ValueError(f"{key}: not a list of mappings")
        yield one


def _text(value: Mapping[str, Any], key: str) -> str:
    found = value.get(key)
    if not isinstance(found, str) or not found or len(found) > 4000:
        raise ValueError(f"{_called(value)}: {key}: no text")
    return found


def _called(value: Mapping[str, Any]) -> str:
    return str(value.get("name", "a component"))[:80]
