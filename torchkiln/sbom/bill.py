"""Combines a lock and an image's package metadata into a bill: components with version, hash, licence, purl.

Versions and hashes come from the lock, licences from the image. If the two disagree, no bill is made. Missing
data is listed in notes, never guessed.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from types import MappingProxyType
from typing import Literal
from uuid import UUID, uuid5

from packageurl import PackageURL
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchkiln.errors import VerificationFailed
from torchkiln.matrix.tags import tag_of
from torchkiln.model.device_code import DeviceCode
from torchkiln.model.digest import Digest
from torchkiln.model.lock import BaseFiles, LockedArchive, LockedCell, LockedStandalone, LockedWheel
from torchkiln.sbom.evidence import Distribution, Evidence, InstalledPackage
from torchkiln.sbom.licences import Licence
from torchkiln.sbom.matches import TOOLKIT

#: wheel, toolkit (NVIDIA's archives): from the lock. os: from dpkg. library: CUDA, cuDNN and NCCL, which are
#: part of a wheel. vendored: a copy of a Python distribution inside another package. project: a project's
#: code. interpreter: a standalone Python.
Kind = Literal["wheel", "os", "toolkit", "library", "vendored", "project", "interpreter"]
DebKey = tuple[str, str, str]  # name, version, architecture

CYCLONEDX = "https://cyclonedx.org/bom"  # cosign's predicate type
_NAMESPACE = uuid5(UUID(int=0), "torchkiln sbom")
_LIBRARIES = (("cuda", "CUDA", "cuda-runtime"), ("cudnn", "cuDNN", "cudnn"), ("nccl", "NCCL", "nccl"))
_OS = re.compile(r"(?P<name>[a-z]+)(?P<version>\d+(\.\d+)*)")
_MAX_SHOWN = 12  # differences in a message


@dataclass(frozen=True, kw_only=True, slots=True)
class BillComponent:
    kind: Kind
    name: str
    version: str
    purl: str
    sha256: str = ""  # hex, of the file that it was installed from; empty: unknown
    licences: tuple[Licence, ...] = ()  # all of them apply; empty: unknown
    carrier: str = ""  # the wheel that contains it
    architecture: str = ""
    source: str = ""  # its source package, "gcc-12 12.2.0-14"
    evidence: str = ""  # the file of the image that its data comes from
    remark: str = ""
    modified: str = field(default="", repr=False)  # how its files differ from those in the file of `sha256`

    @property
    def ref(self) -> str:
        """Its unique id in a document: letters, digits, dots and hyphens."""
        place = hashlib.sha256(self.evidence.encode()).hexdigest()[:8] if self.kind == "vendored" else ""
        name = self.name.replace("+", "-plus")
        return "-".join(filter(None, (self.kind, name, self.architecture, place)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Bill:
    name: str  # of the repository, "pytorch-cuda"
    tag: str
    image: Digest  # the digest of its manifest
    os: str  # "debian 12"
    architecture: str  # OCI's, "amd64"
    epoch: int  # seconds, from the lock
    tool: str  # version of torchkiln
    components: tuple[BillComponent, ...]  # by kind, then by name
    notes: tuple[str, ...]  # on missing data

    @property
    def made(self) -> datetime:
        """The timestamp of documents: the epoch, so that the same bill gives the same bytes."""
        return datetime.fromtimestamp(self.epoch, tz=timezone.utc)

    @property
    def purl(self) -> str:
        qualifiers = {"arch": self.architecture, "tag": self.tag}
        return PackageURL("oci", None, self.name, self.image, qualifiers).to_string()

    def serial(self) -> UUID:
        """The id of its document, unique for the image and the content."""
        modified = (f"{part.ref}: {part.modified}" for part in self.components if part.modified)
        content = ("cyclonedx", self.image, self.tool, *map(repr, self.components), *self.notes, *modified)
        return uuid5(_NAMESPACE, "\n".join(content))


def bill_of(
    locked: LockedCell,
    image: Digest,
    evidence: Evidence,
    *,
    files: BaseFiles | None,
    name: str,
    tool: str,
    added: Mapping[DebKey, str] = MappingProxyType({}),
) -> Bill:
    """The bill of *image*, which was built from *locked* and contains *evidence*.

    :param files: the record of the base's .deb files, with hashes; None if there is none.
    :param added: the OS packages that *locked* does not have, with the SHA-256 of their .deb files.
    :raises VerificationFailed: the image does not match the lock.
    """
    if found := [f"  {line}" for line in _disagreements(locked, evidence, added)]:
        more = [f"  and {len(found) - _MAX_SHOWN} more"] if len(found) > _MAX_SHOWN else []
        raise VerificationFailed(
            "\n".join(["the image does not match its lock:", *found[:_MAX_SHOWN], *more]),
            hint="it was built from another lock, or on a newer base; build it again with --locked",
        )
    system = _OS.fullmatch(locked.base.os)
    distro = (system["name"], system["version"]) if system else (locked.base.os, "")
    debs = {**_debs(locked, files), **added}
    os = [_of_deb(package, debs, distro) for package in evidence.packages]
    dists = {dist.name: dist for dist in evidence.distributions if dist.of_a_wheel}
    wheels = [_of_wheel(wheel, dists[wheel.name], locked.device_code) for wheel in locked.wheels]
    toolkit = [_of_archive(archive) for archive in locked.archives]
    pythons = [_of_standalone(locked.standalone)] if locked.standalone else []
    vendored = [_vendored(dist, dists) for dist in evidence.distributions if not dist.of_a_wheel]
    return Bill(
        name=name,
        tag=tag_of(locked.resolution),
        image=image,
        os=" ".join(distro).strip(),
        architecture=locked.platform.architecture,
        epoch=locked.epoch,
        tool=tool,
        components=in_order((*wheels, *toolkit, *_libraries(locked, dists), *pythons, *os, *vendored)),
        notes=tuple(_notes(os, files, locked)),
    )


def in_order(components: Iterable[BillComponent]) -> tuple[BillComponent, ...]:
    """*components* by kind, then by name."""
    return tuple(
        sorted(
            components,
            key=lambda part: (part.kind, part.name, part.version, part.architecture, part.evidence),
        )
    )


def _disagreements(locked: LockedCell, evidence: Evidence, added: Iterable[DebKey]) -> Iterator[str]:
    wheels = {wheel.name: str(Version(wheel.version)) for wheel in locked.wheels}
    installed = {dist.name: dist.version for dist in evidence.distributions if dist.of_a_wheel}
    yield from _unlike("wheel", wheels, installed)
    hashes = {wheel.name: wheel.sha256 for wheel in locked.wheels}
    if evidence.wheels:
        yield from _unlike("hash of", hashes, {name: sha256 for name, (_, sha256) in evidence.wheels.items()})
    archives = {archive.component: f"{archive.version} {archive.sha256}" for archive in locked.archives}
    yield from _unlike("archive", archives, {name: " ".join(row) for name, row in evidence.archives.items()})
    system = {package.name: package.version for package in locked.os_packages}
    system |= {package: version for package, version, _ in added}
    yield from _unlike("package", system, {package.name: package.version for package in evidence.packages})


def _unlike(what: str, locked: Mapping[str, str], image: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(locked.keys() | image.keys()):
        if locked.get(name) != image.get(name):
            yield f"{what} {name}: locked {locked.get(name, 'none')}, in the image {image.get(name, 'none')}"


def _of_wheel(wheel: LockedWheel, dist: Distribution, cut: DeviceCode | None) -> BillComponent:
    named = {"file_name": wheel.filename} if wheel.filename else {}
    return BillComponent(
        kind="wheel",
        name=wheel.name,
        version=wheel.version,
        purl=PackageURL("pypi", None, wheel.name, wheel.version, named).to_string(),
        sha256=wheel.sha256,
        licences=dist.licences,
        evidence=dist.path,
        modified=_cut(cut) if cut and wheel.name in cut.wheels else "",
    )


def _cut(device_code: DeviceCode) -> str:
    return (
        f"in its libraries, device code that GPUs of capability {', '.join(device_code.gpus)} do not load is"
        f" replaced by zeros (torchkiln's rule {device_code.rule})"
    )


def _of_archive(archive: LockedArchive) -> BillComponent:
    """The component has no licence, because NVIDIA's licence text in the image has no SPDX expression."""
    return BillComponent(
        kind="toolkit",
        name=archive.component,
        version=archive.version,
        purl=PackageURL("generic", TOOLKIT, archive.component, archive.version).to_string(),
        sha256=archive.sha256,
        remark="part of NVIDIA's CUDA toolkit; its headers, programs and stubs are in the image",
    )


def _of_standalone(standalone: LockedStandalone) -> BillComponent:
    """The component has no licence, because the build also contains libraries under other licences."""
    return BillComponent(
        kind="interpreter",
        name="python",
        version=standalone.version,
        purl=PackageURL("generic", None, "python", standalone.version).to_string(),
        sha256=standalone.sha256,
        remark=f"CPython from {standalone.filename}; the libraries in this build are not listed",
    )


def _of_deb(package: InstalledPackage, debs: Mapping[DebKey, str], distro: tuple[str, str]) -> BillComponent:
    qualifiers = {"arch": package.architecture, "distro": "-".join(filter(None, distro))}
    unread = "" if package.licences else "its copyright file is not machine-readable"
    return BillComponent(
        kind="os",
        name=package.name,
        version=package.version,
        purl=PackageURL("deb", distro[0], package.name, package.version, qualifiers).to_string(),
        sha256=debs.get((package.name, package.version, package.architecture), ""),
        licences=package.licences,
        architecture=package.architecture,
        source=f"{package.source} {package.source_version}",
        evidence=package.copyright,
        remark=unread if package.copyright else "it has no copyright file",
    )


def _vendored(dist: Distribution, wheels: Iterable[str]) -> BillComponent:
    """A vendored copy; its carrier is the wheel with the name of its top-level folder, if there is one."""
    _, _, below = dist.path.partition("/site-packages/")
    top = canonicalize_name(below.split("/")[0]) if below else ""
    return BillComponent(
        kind="vendored",
        name=dist.name,
        version=dist.version,
        purl=PackageURL("pypi", None, dist.name, dist.version).to_string(),
        licences=dist.licences,
        carrier=top if top in wheels else "",
        evidence=dist.path,
        remark=f"a copy in /{posixpath.dirname(posixpath.dirname(dist.path))}",
    )


def _libraries(locked: LockedCell, dists: Mapping[str, Distribution]) -> Iterator[BillComponent]:
    """CUDA, cuDNN and NCCL: with the version of the torch build, or of the library's own wheel."""
    build = locked.resolution.build
    wheels = {wheel.name: wheel for wheel in locked.wheels}
    for attribute, title, stem in _LIBRARIES:
        own = re.compile(rf"nvidia-{stem}(-cu\d+)?")
        carrier = next((wheels[name] for name in sorted(wheels) if own.fullmatch(name)), wheels.get("torch"))
        of_build = getattr(build, attribute) if build else None
        version = of_build or (carrier.version if carrier and own.fullmatch(carrier.name) else None)
        if carrier and version:
            yield BillComponent(
                kind="library",
                name=title,
                version=version,
                purl=PackageURL("generic", "nvidia", attribute, version).to_string(),
                licences=dists[carrier.name].licences if own.fullmatch(carrier.name) else (),
                carrier=carrier.name,
                remark=f"part of the wheel {carrier.name} {carrier.version}",
            )


def _debs(locked: LockedCell, files: BaseFiles | None) -> dict[DebKey, str]:
    if files is None or files.base != locked.base.digest:
        return {}
    return {(deb.name, deb.version, deb.architecture): deb.sha256 for deb in files.debs}


def _notes(os: list[BillComponent], files: BaseFiles | None, locked: LockedCell) -> Iterator[str]:
    without = [part.name for part in os if not part.sha256]
    if files is None or files.base != locked.base.digest:
        yield "The .deb files of the base were not recorded, so its packages have no hashes."
    elif without:
        yield (
            "These packages were no longer in the archive when the .deb files of the base were recorded, so"
            f" they have no hashes: {', '.join(without)}."
        )
    if unread := [part.name for part in os if not part.licences]:
        yield (
            f"{len(unread)} OS packages have no machine-readable licence; see their copyright files in the"
            " image."
        )
