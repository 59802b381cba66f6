"""LockedCell, Evidence -> Bill: every component of an image with version, hash, licence and package URL.

The lock says what must be there and by which hash; the image says what is there and under which licence.
Where they disagree there is no bill. What neither knows is told as a note, never filled in.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Literal
from uuid import UUID, uuid5

from packageurl import PackageURL
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchkiln.errors import VerificationFailed
from torchkiln.matrix.tags import tag_of
from torchkiln.model.digest import Digest
from torchkiln.model.lock import BaseFiles, DebFile, LockedArchive, LockedCell, LockedWheel
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.plan.micromamba import program_path
from torchkiln.sbom.evidence import Distribution, Evidence, Installed
from torchkiln.sbom.licences import Licence
from torchkiln.sbom.listed import TOOLKIT

#: wheel, program: the lock's. os: dpkg's. toolkit: archives of NVIDIA's, the lock's too. library: CUDA,
#: cuDNN, NCCL, which come in a wheel. vendored: a Python distribution inside of something else.
Kind = Literal["wheel", "program", "os", "toolkit", "library", "vendored"]
_DebKey = tuple[str, str, str]  # name, version, architecture

_NAMESPACE = uuid5(UUID(int=0), "torchkiln sbom")
_LIBRARIES = (("cuda", "CUDA", "cuda-runtime"), ("cudnn", "cuDNN", "cudnn"), ("nccl", "NCCL", "nccl"))
_OS = re.compile(r"(?P<name>[a-z]+)(?P<version>\d+(\.\d+)*)")
_FIRST = 12  # differences that are told


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """One thing that an image is made of."""

    kind: Kind
    name: str
    version: str
    purl: str
    sha256: str = ""  # hex, of the file that it came in; empty: not known
    licences: tuple[Licence, ...] = ()  # all of them hold; none: nobody says
    carrier: str = ""  # the wheel that it came in, if it is no file of its own
    architecture: str = ""
    source: str = ""  # "gcc-12 12.2.0-14": of which source package
    told_by: str = ""  # where in the image it says of itself what is said here
    remark: str = ""

    @property
    def ref(self) -> str:
        """Its id in a document: letters, digits, dots and hyphens, by which no other of a bill is called."""
        place = hashlib.sha256(self.told_by.encode()).hexdigest()[:8] if self.kind == "vendored" else ""
        name = self.name.replace("+", "-plus")
        return "-".join(filter(None, (self.kind, name, self.architecture, place)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Bill:
    """All that an image is made of."""

    name: str  # of the repository, "pytorch-cuda"
    tag: str
    image: Digest  # the manifest's
    os: str  # "debian 12"
    epoch: int  # seconds; the lock's
    tool: str  # version of torchkiln
    components: tuple[Component, ...]  # by kind, then by name
    notes: tuple[str, ...]  # what is not known

    @property
    def made(self) -> datetime:
        """The time that stands in a document: no clock's, for the same bill gives the same bytes."""
        return datetime.fromtimestamp(self.epoch, tz=timezone.utc)

    @property
    def purl(self) -> str:
        """The image's own."""
        qualifiers = {"arch": LINUX_AMD64.architecture, "tag": self.tag}
        return PackageURL("oci", None, self.name, self.image, qualifiers).to_string()

    def serial(self, form: str) -> UUID:
        """The name of its document in *form*, one for each image and content."""
        told = "\n".join((form, self.image, self.tool, *map(repr, self.components), *self.notes))
        return uuid5(_NAMESPACE, told)


def bill_of(
    locked: LockedCell,
    image: Digest,
    evidence: Evidence,
    *,
    files: BaseFiles | None,
    name: str,
    tool: str,
) -> Bill:
    """The bill of *image*, which was built from *locked* and says *evidence* of itself.

    :param files: what the archive's index said of the base's files; None where nobody noted it.
    :raises VerificationFailed: the image is not what the lock says.
    """
    if found := [f"  {one}" for one in _disagreements(locked, evidence)]:
        more = [f"  and {len(found) - _FIRST} more"] if len(found) > _FIRST else []
        raise VerificationFailed(
            "\n".join(["the image is not what its lock says:", *found[:_FIRST], *more]),
            hint="it was built from another lock, or on a newer base: build it again with --locked",
        )
    system = _OS.fullmatch(locked.base.os)
    distro = (system["name"], system["version"]) if system else (locked.base.os, "")
    debs = _debs(locked, files)
    os = [_of_deb(one, debs, distro) for one in evidence.packages]
    dists = {one.name: one for one in evidence.distributions if one.of_a_wheel}
    wheels = [_of_wheel(wheel, dists[wheel.name]) for wheel in locked.wheels]
    toolkit = [_of_archive(archive) for archive in locked.archives]
    vendored = [_vendored(one, dists) for one in evidence.distributions if not one.of_a_wheel]
    return Bill(
        name=name,
        tag=tag_of(locked.resolution),
        image=image,
        os=" ".join(distro).strip(),
        epoch=locked.epoch,
        tool=tool,
        components=tuple(
            sorted(
                (*wheels, *_programs(locked), *toolkit, *_libraries(locked, dists), *os, *vendored),
                key=lambda one: (one.kind, one.name, one.version, one.architecture, one.told_by),
            )
        ),
        notes=tuple(_notes(os, files, locked)),
    )


def purl_of_deb(name: str, version: str, architecture: str, distro: tuple[str, str]) -> str:
    """The package URL of a Debian package."""
    qualifiers = {"arch": architecture, "distro": "-".join(filter(None, distro))}
    return PackageURL("deb", distro[0], name, version, qualifiers).to_string()


def _disagreements(locked: LockedCell, evidence: Evidence) -> Iterator[str]:
    wheels = {wheel.name: str(Version(wheel.version)) for wheel in locked.wheels}
    there = {one.name: one.version for one in evidence.distributions if one.of_a_wheel}
    yield from _unlike("wheel", wheels, there)
    hashes = {wheel.name: wheel.sha256 for wheel in locked.wheels}
    if evidence.wheels:
        yield from _unlike("hash of", hashes, {name: sha256 for name, (_, sha256) in evidence.wheels.items()})
    archives = {one.component: (one.version, one.sha256) for one in locked.archives}
    yield from _unlike(
        "archive",
        {name: " ".join(told) for name, told in archives.items()},
        {name: " ".join(told) for name, told in evidence.archives.items()},
    )
    system = {package.name: package.version for package in locked.os_packages}
    yield from _unlike("package", system, {one.name: one.version for one in evidence.packages})


def _unlike(what: str, locked: Mapping[str, str], there: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(locked.keys() | there.keys()):
        if locked.get(name) != there.get(name):
            yield f"{what} {name}: locked {locked.get(name, 'none')}, in the image {there.get(name, 'none')}"


def _of_wheel(wheel: LockedWheel, said: Distribution) -> Component:
    return Component(
        kind="wheel",
        name=wheel.name,
        version=wheel.version,
        purl=PackageURL("pypi", None, wheel.name, wheel.version, {"file_name": wheel.filename}).to_string(),
        sha256=wheel.sha256,
        licences=said.licences,
        told_by=said.path,
    )


def _programs(locked: LockedCell) -> Iterator[Component]:
    """What components bring that is no package of any kind; of its licence nobody in the image tells."""
    for program in (component.program for component in locked.components if component.program):
        yield Component(
            kind="program",
            name=program.name,
            version=program.version,
            purl=PackageURL("generic", None, program.name, program.version).to_string(),
            sha256=program.sha256,
            remark=f"/{program_path(program)}, as {program.filename} was released",
        )


def _of_archive(archive: LockedArchive) -> Component:
    """NVIDIA's licence of its toolkit lies beside it, in words of its own; none is put into its mouth."""
    return Component(
        kind="toolkit",
        name=archive.component,
        version=archive.version,
        purl=PackageURL("generic", TOOLKIT, archive.component, archive.version).to_string(),
        sha256=archive.sha256,
        remark="a part of NVIDIA's CUDA toolkit, of which headers, programs and stubs are in the image",
    )


def _of_deb(one: Installed, debs: Mapping[_DebKey, DebFile], distro: tuple[str, str]) -> Component:
    file = debs.get((one.name, one.version, one.architecture))
    unread = "" if one.licences else "its copyright file is not machine-readable"
    return Component(
        kind="os",
        name=one.name,
        version=one.version,
        purl=purl_of_deb(one.name, one.version, one.architecture, distro),
        sha256=file.sha256 if file else "",
        licences=one.licences,
        architecture=one.architecture,
        source=f"{one.source} {one.source_version}",
        told_by=one.copyright,
        remark=unread if one.copyright else "it has no copyright file",
    )


def _vendored(one: Distribution, wheels: Iterable[str]) -> Component:
    """Carried by the wheel whose folder it lies in, where the wheel has its folder's name."""
    _, _, below = one.path.partition("/site-packages/")
    top = canonicalize_name(below.split("/")[0]) if below else ""
    return Component(
        kind="vendored",
        name=one.name,
        version=one.version,
        purl=PackageURL("pypi", None, one.name, one.version).to_string(),
        licences=one.licences,
        carrier=top if top in wheels else "",
        told_by=one.path,
        remark=f"a copy in /{posixpath.dirname(posixpath.dirname(one.path))}",
    )


def _libraries(locked: LockedCell, said: Mapping[str, Distribution]) -> Iterator[Component]:
    """CUDA, cuDNN and NCCL: by the versions of the build, or of the wheel that is nothing else."""
    build = locked.resolution.build
    wheels = {wheel.name: wheel for wheel in locked.wheels}
    for field, title, stem in _LIBRARIES:
        own = re.compile(rf"nvidia-{stem}(-cu\d+)?")
        carrier = next((wheels[name] for name in sorted(wheels) if own.fullmatch(name)), wheels.get("torch"))
        told = getattr(build, field) if build else None
        version = told or (carrier.version if carrier and own.fullmatch(carrier.name) else None)
        if carrier and version:
            yield Component(
                kind="library",
                name=title,
                version=version,
                purl=PackageURL("generic", "nvidia", field, version).to_string(),
                licences=said[carrier.name].licences if own.fullmatch(carrier.name) else (),
                carrier=carrier.name,
                remark=f"comes in the wheel {carrier.name} {carrier.version}",
            )


def _debs(locked: LockedCell, files: BaseFiles | None) -> dict[_DebKey, DebFile]:
    if files is None or files.base != locked.base.digest:
        return {}
    return {(deb.name, deb.version, deb.architecture): deb for deb in files.debs}


def _notes(os: list[Component], files: BaseFiles | None, locked: LockedCell) -> Iterator[str]:
    without = [one.name for one in os if not one.sha256]
    if files is None or files.base != locked.base.digest:
        yield "Nobody noted which files the base was made of: its packages have no hash here."
    elif without:
        yield (
            "The archive had these packages of the base no more when their files were noted, so they have no"
            f" hash here: {', '.join(without)}."
        )
    if unsaid := [one.name for one in os if not one.licences]:
        yield (
            f"{len(unsaid)} packages of the OS tell their licence in words that no program reads; their"
            " copyright files are in the image."
        )
