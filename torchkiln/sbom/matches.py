"""An SBOM, what was read in an image -> in what they differ, a sentence each; none: the SBOM is true."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from torchkiln.model.digest import Digest
from torchkiln.model.lock import BaseFiles, LockedCell
from torchkiln.sbom.bill import Bill
from torchkiln.sbom.evidence import Evidence
from torchkiln.sbom.listed import Item, Listed, System, listed

_Key = tuple[System, str, str]  # system, name, architecture


def matches(document: bytes, image: Digest, found: Iterable[Item], *, where: str = "SBOM") -> tuple[str, ...]:
    """In what *document*, in either format, differs from what was *found* in *image*.

    A hash that only one of them tells is no difference: an image does not say from which .deb it came. Nor is
    a component that is no package (CUDA, cuDNN, NCCL): the wheel that it comes in is compared.

    :raises VerificationFailed: *document* cannot be read.
    """
    told = listed(document, where=where)
    return tuple(_differences(told, image, found))


def matches_lock(
    document: bytes, image: Digest, locked: LockedCell, files: BaseFiles | None = None, *, where: str = "SBOM"
) -> tuple[str, ...]:
    """In what *document* differs from what *image* was built from: no layer is read.

    A lock does not know what lies inside of wheels: Python packages without a hash are passed over.

    :param files: what was noted of the base's files; without it hashes of the OS's packages are passed over.
    :raises VerificationFailed: *document* cannot be read.
    """
    told = listed(document, where=where)
    items = tuple(replace(one, architecture="") for one in told.items if one.system != "python" or one.sha256)
    noted = files.debs if files and files.base == locked.base.digest else ()
    hashes = {(deb.name, deb.version): deb.sha256 for deb in noted}
    wheels = (
        Item(system="python", name=one.name, version=one.version, sha256=one.sha256) for one in locked.wheels
    )
    os = (
        Item(system="os", name=name, version=version, sha256=hashes.get((name, version), ""))
        for name, version in ((one.name, one.version) for one in locked.os_packages)
    )
    toolkit = (
        Item(system="toolkit", name=one.component, version=one.version, sha256=one.sha256)
        for one in locked.archives
    )
    return tuple(_differences(replace(told, items=items), image, (*wheels, *os, *toolkit)))


def items_of(evidence: Evidence) -> tuple[Item, ...]:
    """What *evidence* says is installed; hashes of wheels where the image tells them."""
    wheels = [
        Item(
            system="python",
            name=one.name,
            version=one.version,
            sha256=_hash(evidence, one.name, one.version) if one.of_a_wheel else "",
        )
        for one in evidence.distributions
    ]
    os = [
        Item(system="os", name=one.name, version=one.version, architecture=one.architecture)
        for one in evidence.packages
    ]
    toolkit = [
        Item(system="toolkit", name=name, version=version, sha256=sha256)
        for name, (version, sha256) in evidence.archives.items()
    ]
    return (*wheels, *os, *toolkit)


def items_of_bill(bill: Bill) -> tuple[Item, ...]:
    """What *bill* lists: with the lock at hand, hashes of the OS's packages too."""
    systems: dict[str, System] = {
        "os": "os",
        "wheel": "python",
        "vendored": "python",
        "toolkit": "toolkit",
    }
    return tuple(
        Item(
            system=systems[one.kind],
            name=one.name,
            version=one.version,
            architecture=one.architecture,
            sha256=one.sha256,
        )
        for one in bill.components
        if one.kind in systems
    )


def _hash(evidence: Evidence, name: str, version: str) -> str:
    locked, sha256 = evidence.wheels.get(name, ("", ""))
    return sha256 if locked == version else ""


def _differences(told: Listed, image: Digest, found: Iterable[Item]) -> Iterator[str]:
    if told.image != image:
        yield f"the SBOM is of {told.image}, not of {image}"
    listed_items, there = _by_key(told.items), _by_key(found)
    for key in sorted(listed_items.keys() | there.keys()):
        yield from _of_one(_called(key), listed_items.get(key, []), there.get(key, []))


def _of_one(called: str, told: list[Item], found: list[Item]) -> Iterator[str]:
    """The copies of one package; as a rule one."""
    told, found = list(told), list(found)
    for one in list(found):
        same = next((other for other in told if _same(one, other)), None)
        if same is not None:
            told.remove(same)
            found.remove(one)
    for one, other in zip(list(told), list(found), strict=False):
        told.remove(one)
        found.remove(other)
        if one.version == other.version:
            yield f"{called} {one.version}: the SBOM has the hash {one.sha256}, the image {other.sha256}"
        else:
            yield f"{called}: the SBOM has {one.version}, the image {other.version}"
    yield from (f"{called} {one.version}: in the SBOM, and not in the image" for one in told)
    yield from (f"{called} {one.version}: in the image, and not in the SBOM" for one in found)


def _same(one: Item, other: Item) -> bool:
    hashes = {one.sha256, other.sha256} - {""}
    return one.version == other.version and len(hashes) < 2


def _by_key(items: Iterable[Item]) -> dict[_Key, list[Item]]:
    found: dict[_Key, list[Item]] = defaultdict(list)
    for one in sorted(items, key=lambda one: (one.name, one.version, one.sha256)):
        if one.system != "other":
            found[(one.system, one.name, one.architecture)].append(one)
    return found


def _called(key: _Key) -> str:
    system, name, architecture = key
    if system == "os":
        return f"package {name}:{architecture}".rstrip(":")
    return f"archive {name}" if system == "toolkit" else f"Python package {name}"
