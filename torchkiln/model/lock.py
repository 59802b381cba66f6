"""Defines the lock of a cell: wheels, archives, base and tools, each by hash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from torchkiln.model import fields
from torchkiln.model.cell import Resolution, Source
from torchkiln.model.device_code import DeviceCode
from torchkiln.model.digest import Digest
from torchkiln.model.layer import ImageLayer
from torchkiln.model.platform import DEFAULT_PLATFORM, PLATFORMS, Platform
from torchkiln.model.recipe import ImagePython, minor
from torchkiln.util import codec

_SET = Meta(max_length=100, extra_json_schema={"uniqueItems": True})


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedWheel:
    """One wheel, by hash. It has no URL: the index determines that."""

    name: fields.Name  # normalized, "nvidia-cublas-cu12"
    version: fields.Version
    filename: fields.FileName
    sha256: fields.Sha256
    size: fields.Bytes = 0  # 0: not known, because the hash is from public record
    index: Source
    # NVIDIA's libraries in it, sorted: the image has a link to each where the loader finds it by name
    libraries: fields.Some[fields.WheelLibrary] = ()
    # where the index had it, in case the index no longer lists it; no digest covers it
    path: fields.IndexPath | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedArchive:
    """One part of NVIDIA's toolkit, an xz tar, by hash. It has no URL: the user sets the location."""

    component: fields.ToolkitPart  # "cuda_nvcc"
    version: fields.Version  # its own, "12.1.105"
    # below the address of NVIDIA's layout, "cuda_nvcc/linux-x86_64/cuda_nvcc-...-archive.tar.xz"
    path: fields.ArchivePath
    size: fields.Bytes
    sha256: fields.Sha256

    @property
    def filename(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class OsPackage:
    """One OS package of an image."""

    name: str
    version: str


def package_changes(before: tuple[OsPackage, ...], after: tuple[OsPackage, ...]) -> tuple[str, ...]:
    """The differences of two package lists, sorted by name: "openssl 3.0.18 → 3.0.19". Pure."""
    old = {package.name: package.version for package in before}
    new = {package.name: package.version for package in after}
    return tuple(
        f"{name} {old.get(name, '(new)')} → {new.get(name, '(gone)')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    )


#: The schema of an artefact's packages in a document: name -> version.
PACKAGES = {
    "type": "object",
    "propertyNames": {
        "pattern": "^[a-z0-9][a-z0-9+.-]{0,200}$",
        "description": "the name of a Debian package",
    },
    "additionalProperties": {
        "type": "string",
        "pattern": "^[A-Za-z0-9.+:~-]{1,200}$",
        "description": "the version of a Debian package",
    },
}


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedBase:
    """The base of an image: one layer blob and its packages."""

    os: fields.Word  # "debian12"
    python: fields.Version  # full version of its interpreter, "3.11.2"
    digest: fields.Sha256Digest  # of the compressed blob
    diff_id: fields.Sha256Digest
    size: fields.Bytes
    unpacked: fields.Bytes
    encoder: fields.Line  # "libdeflate 0.9.0 level 6"
    packages: tuple[OsPackage, ...] = field(metadata={codec.SCHEMA: PACKAGES})
    untrusted: bool = False  # its packages came from an untrusted archive
    platform: fields.PlatformName = DEFAULT_PLATFORM

    @property
    def system(self) -> str:
        """Its name in folders: "debian12", on another platform "debian12-arm64"."""
        return f"{self.os}{PLATFORMS[self.platform].suffix}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedTools:
    """The OS's build tools: one layer blob on top of a base, and the packages that it adds."""

    os: fields.Word  # "debian12"
    name: fields.OsTools  # "devel", "devel-gcc11"
    base: fields.Sha256Digest  # of the base's blob, the only one on which it fits
    digest: fields.Sha256Digest
    diff_id: fields.Sha256Digest
    size: fields.Bytes
    unpacked: fields.Bytes
    encoder: fields.Line
    packages: tuple[OsPackage, ...] = field(metadata={codec.SCHEMA: PACKAGES})  # without the base's
    untrusted: bool = False  # its packages came from an untrusted archive


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedStandalone:
    """A CPython from a standalone build: one layer blob over a base, made from the build's archive.

    It depends on the base's Python version only, not on the base's blob.
    """

    version: fields.Version  # full version, "3.12.8"
    filename: fields.FileName  # of the archive
    sha256: fields.Sha256  # of the archive
    archive_size: fields.Bytes
    digest: fields.Sha256Digest
    diff_id: fields.Sha256Digest
    size: fields.Bytes
    unpacked: fields.Bytes
    encoder: fields.Line


@dataclass(frozen=True, kw_only=True, slots=True)
class DebFile:
    """The file of an OS package, as the archive's signed index describes it."""

    name: fields.DebName
    version: fields.DebVersion
    architecture: fields.DebArchitecture
    # "gcc-12 (12.2.0-14)"; without the version where it equals the package's
    source: fields.DebSource
    size: fields.Bytes
    sha256: fields.Sha256
    path: fields.DebPath | None = None  # below the archive's address; None: not recorded
    security: bool = False  # whether the security archive has it

    @property
    def filename(self) -> str:
        """The name that apt gives to the file: "git_1%3a2.39.5-0+deb12u2_amd64.deb"."""
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb"


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseFiles:
    """The package files from which the blob *base*, a base or tools, was made."""

    base: Digest
    debs: tuple[DebFile, ...]  # sorted by name; without those that the archive's index lacks
    # the Date of each suite's Release file, "20261128T083012Z"
    dates: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedCell:
    """A resolution with the hash of every file."""

    resolution: Resolution
    wheels: Annotated[tuple[LockedWheel, ...], Meta(min_length=1, max_length=5000)]  # sorted by name
    base: LockedBase
    as_of: fields.Date  # files uploaded on that day (UTC) or later were ignored
    epoch: fields.Epoch  # the timestamp in config, history and overlay
    inputs: fields.Sha256Digest  # of matrix, facts and recipe; `lock --check` compares it
    # recorded by the first build, checked by later ones; empty until recorded
    layers: Annotated[tuple[ImageLayer, ...], Meta(max_length=127)]
    untrusted: bool = False  # an index that it used is untrusted
    # names of wheels that come from public record, not from an index: see public_record.py
    by_record: Annotated[tuple[fields.Name, ...], _SET] = ()
    tools: LockedTools | None = None  # of a devel cell
    # of a devel cell's toolkit, sorted by component
    archives: Annotated[tuple[LockedArchive, ...], Meta(max_length=100)] = ()
    device_code: DeviceCode | None = None  # None: the libraries are as in their wheels
    standalone: LockedStandalone | None = None  # None: the image runs the base's Python

    @property
    def platform(self) -> Platform:
        return PLATFORMS[self.resolution.cell.platform]

    @property
    def python(self) -> ImagePython:
        """The Python of the image's environment, for which its packages are installed."""
        version = self.standalone.version if self.standalone else self.base.python
        platform = self.resolution.cell.platform
        return ImagePython(version=version, folder=minor(self.base.python), platform=platform)

    @property
    def artefacts(self) -> tuple[LockedBase | LockedTools | LockedStandalone, ...]:
        """The base; and the tools and the standalone Python, if the image has them."""
        return (self.base, *(found for found in (self.tools, self.standalone) if found))

    @property
    def os_packages(self) -> tuple[OsPackage, ...]:
        """All OS packages of the image, sorted by name."""
        more = self.tools.packages if self.tools else ()
        return tuple(
            sorted((*self.base.packages, *more), key=lambda package: (package.name, package.version))
        )


def artefact_json(artefact: LockedBase | LockedTools) -> dict[str, Any]:
    """The JSON values of *artefact*; its packages are an object, name -> version."""
    values: dict[str, Any] = codec.plain(artefact)
    return values | {"packages": {package.name: package.version for package in artefact.packages}}


def artefact_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `artefact_json` for `codec.typed`."""
    packages = [{"name": name, "version": version} for name, version in document["packages"].items()]
    return {**document, "packages": packages}
