"""Reads the components that a CycloneDX 1.6 document lists.

The reader is strict, and accepts only the form that `cyclonedx.py` writes. It does not use the library that
writes these documents, so that it finds faults of that library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta
from packageurl import PackageURL

from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.util import codec
from torchkiln.util.strict_json import json_of

LIMIT = 16 << 20  # bytes of a document; that of 2.7.1 has less than 1 MB
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


_Text = Annotated[str, Meta(min_length=1, max_length=4000)]
_Components = Annotated[tuple["_Component", ...], Meta(max_length=100_000)]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Hash:
    alg: str
    content: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Component:
    type: str = ""
    name: _Text
    version: _Text
    purl: _Text = ""
    hashes: tuple[_Hash, ...] = ()
    components: _Components = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Metadata:
    component: _Component


@dataclass(frozen=True, kw_only=True, slots=True)
class _Document:
    metadata: _Metadata
    components: _Components = ()


def listed(document: bytes, *, where: str = "SBOM") -> SbomContents:
    """Read *document*, in CycloneDX; *where* is its name in messages.

    :raises VerificationFailed: it is invalid or ambiguous.
    """
    try:
        if len(document) > LIMIT:
            raise ValueError(f"longer than {LIMIT} bytes")
        content = json_of(document)
        form = (content.get("bomFormat"), content.get("specVersion")) if isinstance(content, dict) else ()
        if form != ("CycloneDX", "1.6"):
            raise ValueError("not a CycloneDX 1.6 document")
        found = codec.typed(_Document, content)
        image = found.metadata.component
        if image.type != "container":
            raise ValueError("metadata.component is not an image")
        parts = (part for part in _flat(found.components) if part.type != "operating-system")
        return SbomContents(image=parse_digest(f"sha256:{_hash(image)}"), items=tuple(map(_item, parts)))
    except ValueError as error:
        raise VerificationFailed(f"{where}: {error}", hint=_HINT) from None


def _flat(components: Iterable[_Component]) -> Iterator[_Component]:
    """All components, also nested ones; `json_of` limits the depth."""
    for component in components:
        yield component
        yield from _flat(component.components)


def _item(part: _Component) -> SbomItem:
    """A component; its fields and its package URL must have the same name and version."""
    try:
        parsed = PackageURL.from_string(part.purl)
    except ValueError:
        raise ValueError(f"{part.name[:80]}: invalid package URL: {part.purl[:80]!r}") from None
    of_toolkit = parsed.type == "generic" and parsed.namespace == TOOLKIT
    system: System = "toolkit" if of_toolkit else _SYSTEMS.get(parsed.type, "other")
    names = (parsed.name, part.name) if system != "other" else (parsed.name.lower(), part.name.lower())
    if names[0] != names[1] or parsed.version != part.version:
        raise ValueError(f"{part.name[:80]} {part.version[:80]}: package URL mismatch: {part.purl[:120]!r}")
    qualifiers = parsed.qualifiers if isinstance(parsed.qualifiers, dict) else {}
    return SbomItem(
        system=system,
        name=part.name,
        version=part.version,
        architecture=qualifiers.get("arch", "") if system == "os" else "",
        sha256=_hash(part),
    )


def _hash(part: _Component) -> str:
    """The sha256 of *part*; empty if there is none."""
    found = [row.content for row in part.hashes if row.alg == "SHA-256"]
    if len(found) > 1:
        raise ValueError(f"{part.name[:80]}: more than one sha256")
    return found[0] if found else ""
