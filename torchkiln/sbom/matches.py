"""Compares an SBOM with an image or with a lock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import zip_longest

from torchkiln.model.digest import Digest
from torchkiln.model.lock import BaseFiles, LockedCell
from torchkiln.sbom.evidence import Evidence
from torchkiln.sbom.listed import SbomContents, SbomItem, System, listed

_Key = tuple[System, str, str]  # system, name, architecture


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
    document: bytes, image: Digest, locked: LockedCell, files: BaseFiles | None = None, *, where: str = "SBOM"
) -> tuple[str, ...]:
    """The differences between *document* and the lock of *image*; no layer is read.

    Python packages without a hash are ignored: they are vendored inside wheels, which a lock does not list.

    :param files: the recorded .deb files of the base; without them, hashes of OS packages are not compared.
    :raises VerificationFailed: *document* is invalid.
    """
    contents = listed(document, where=where)
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
