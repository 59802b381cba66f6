"""Compares a CycloneDX 1.6 document with an image or with a lock.

The reader is strict, and accepts only the form that `cyclonedx.py` writes. It does not use the library that
writes these documents, so that it finds faults of that library.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Annotated, Literal

from msgspec import Meta
from packageurl import PackageURL

from torchkiln.errors import VerificationFailed
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.model.lock import BaseFiles, LockedCell
from torchkiln.sbom.evidence import Evidence
from torchkiln.util import codec
from torchkiln.util.strict_json import json_of


def matches(
    document: bytes, image: Digest, found: Iterable[SbomItem], *, where: str = "SBOM"
) -> tuple[str, ...]:
    """The differences between *document* (CycloneDX) and the packages *found* in *image*.

    Hashes are compared only if both sides have one: an image does not record the hashes of its .deb files.
    Components that are not packages (CUDA, cuDNN, NCCL) are not compared; their wheels are.

    :raises VerificationFailed: *document* is invalid.
    """
    return tuple(_differences(listed(document, where=where), image, found))


def matches_lock(
    document: bytes, image: Digest, locked: LockedCell, files: BaseFiles | None = None
) -> tuple[str, ...]:
    """The differences between *document* and the lock of *image*; no layer is read.

    Python packages without a hash are ignored: they are vendored inside wheels, which a lock does not list.

    :param files: the recorded .deb files of the base; without them, hashes of OS packages are not compared.
    :raises VerificationFailed: *document* is invalid.
    """
    contents = listed(document)
    items = tuple(
        replace(item, architecture="") for item in contents.items if item.system != "python" or item.sha256
    )
    debs = files.debs if files and files.base == locked.base.digest else ()
    hashes = {(deb.name, deb.version): deb.sha256 for deb in debs}
    wheels = (
        SbomItem(system="python", name=wheel.name, version=wheel.version, sha256=wheel.sha256)
        for wheel in locked.wheels
    )
    os = (
        SbomItem(
            system="os", name=deb.name, version=deb.version, sha256=hashes.get((deb.name, deb.version), "")
        )
        for deb in locked.os_packages
    )
    toolkit = (
        SbomItem(system="toolkit", name=archive.component, version=archive.version, sha256=archive.sha256)
        for archive in locked.archives
    )
    return tuple(_differences(replace(contents, items=items), image, (*wheels, *os, *toolkit)))


def items_of(evidence: Evidence) -> tuple[SbomItem, ...]:
    """The installed packages in *evidence*; with hashes of wheels if image.json has them."""
    wheels = [
        SbomItem(
            system="python",
            name=dist.name,
            version=dist.version,
            sha256=_hash(evidence, dist.name, dist.version) if dist.of_a_wheel else "",
        )
        for dist in evidence.distributions
    ]
    os = [
        SbomItem(system="os", name=deb.name, version=deb.version, architecture=deb.architecture)
        for deb in evidence.packages
    ]
    toolkit = [
        SbomItem(system="toolkit", name=name, version=version, sha256=sha256)
        for name, (version, sha256) in evidence.archives.items()
    ]
    return (*wheels, *os, *toolkit)


def _hash(evidence: Evidence, name: str, version: str) -> str:
    locked, sha256 = evidence.wheels.get(name, ("", ""))
    return sha256 if locked == version else ""


def _differences(contents: SbomContents, image: Digest, found: Iterable[SbomItem]) -> Iterator[str]:
    if contents.image != image:
        yield f"the SBOM is of {contents.image}, not of {image}"
    in_sbom, in_image = _by_key(contents.items), _by_key(found)
    for key in sorted(in_sbom.keys() | in_image.keys()):
        yield from _package_differences(_called(key), in_sbom.get(key, []), in_image.get(key, []))


def _package_differences(name: str, in_sbom: list[SbomItem], in_image: list[SbomItem]) -> Iterator[str]:
    """Compare all copies of one package; usually there is one."""
    left, others = list(in_sbom), []
    for item in in_image:
        if same := next((other for other in left if _same(item, other)), None):
            left.remove(same)
        else:
            others.append(item)
    for ours, theirs in zip_longest(left, others):
        if theirs is None:
            yield f"{name} {ours.version}: in the SBOM, but not in the image"
        elif ours is None:
            yield f"{name} {theirs.version}: in the image, but not in the SBOM"
        elif ours.version == theirs.version:
            yield f"{name} {ours.version}: the SBOM has the hash {ours.sha256}, the image {theirs.sha256}"
        else:
            yield f"{name}: the SBOM has {ours.version}, the image {theirs.version}"


def _same(a: SbomItem, b: SbomItem) -> bool:
    hashes = {a.sha256, b.sha256} - {""}
    return a.version == b.version and len(hashes) < 2


def _by_key(items: Iterable[SbomItem]) -> dict[_Key, list[SbomItem]]:
    found: dict[_Key, list[SbomItem]] = defaultdict(list)
    for item in sorted(items, key=lambda item: (item.name, item.version, item.sha256)):
        if item.system != "other":
            found[(item.system, item.name, item.architecture)].append(item)
    return found


def _called(key: _Key) -> str:
    system, name, architecture = key
    if system == "os":
        return f"package {name}:{architecture}".rstrip(":")
    return f"archive {name}" if system == "toolkit" else f"Python package {name}"


LIMIT = 16 << 20  # bytes of a document; that of 2.7.1 has less than 1 MB
_HINT = "do not use this document; get it again from the image's registry"
System = Literal["python", "os", "toolkit", "other"]
_Key = tuple[System, str, str]  # system, name, architecture
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
        return SbomContents(image=parse_digest(f"sha256:{_sha256_of(image)}"), items=tuple(map(_item, parts)))
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
        sha256=_sha256_of(part),
    )


def _sha256_of(part: _Component) -> str:
    """The sha256 of *part*; empty if there is none."""
    found = [row.content for row in part.hashes if row.alg == "SHA-256"]
    if len(found) > 1:
        raise ValueError(f"{part.name[:80]}: more than one sha256")
    return found[0] if found else ""
