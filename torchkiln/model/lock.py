"""Locked wheels, archives, bases and tools, and the lock of a cell: every byte is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from torchkiln.model import fields
from torchkiln.model.cell import Resolution, Source
from torchkiln.model.digest import Digest
from torchkiln.model.layer import ImageLayer
from torchkiln.util import codec

_SET = Meta(max_length=100, extra_json_schema={"uniqueItems": True})


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedWheel:
    """One wheel, by content. No URL: where it lies is the index's affair."""

    name: fields.Name  # normalized, "nvidia-cublas-cu12"
    version: fields.Version
    filename: fields.FileName
    sha256: fields.Sha256
    size: fields.Bytes = 0  # 0: nobody measured it, the hash is by public record
    index: Source
    at: fields.FileName = ""  # its name where it lies, if that is another than its own metadata give it


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedComponent:
    """What a component adds to a cell's lock."""

    name: fields.Name
    wheels: Annotated[
        tuple[fields.Name, ...], Meta(max_length=5000, extra_json_schema={"uniqueItems": True})
    ]  # names, among the lock's own; sorted
    program: LockedWheel | None = None  # its file, which is no wheel but is fetched like one


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedArchive:
    """One part of NVIDIA's toolkit, an xz tar, by content. No URL: where it lies is the user's affair."""

    component: fields.ToolkitPart  # "cuda_nvcc"
    version: fields.Version  # its own, "12.1.105"
    path: (
        fields.ArchivePath
    )  # below the address of NVIDIA's layout, "cuda_nvcc/linux-x86_64/cuda_nvcc-...-archive.tar.xz"
    size: fields.Bytes
    sha256: fields.Sha256

    @property
    def filename(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class OsPackage:
    """One package of the base."""

    name: str
    version: str


#: How a document has the packages of an artefact: name -> version.
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
    """The base as an artefact: one layer blob and what is in it."""

    os: fields.Word  # "debian12"
    python: fields.Version  # full version of its interpreter, "3.11.2"
    digest: fields.Sha256Digest  # of the compressed blob
    diff_id: fields.Sha256Digest
    size: fields.Bytes
    unpacked: fields.Bytes
    encoder: fields.Line  # "libdeflate 0.9.0 level 6"
    packages: tuple[OsPackage, ...] = field(metadata={codec.SCHEMA: PACKAGES})
    untrusted: bool = False  # its packages came from an untrusted archive


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedTools:
    """The OS's tools as an artefact: a layer blob on top of one base, and what it adds."""

    os: fields.Word  # "debian12"
    name: fields.OsTools  # "devel", "devel-gcc11"
    base: fields.Sha256Digest  # of the base's blob, on which alone it fits
    digest: fields.Sha256Digest
    diff_id: fields.Sha256Digest
    size: fields.Bytes
    unpacked: fields.Bytes
    encoder: fields.Line
    packages: tuple[OsPackage, ...] = field(metadata={codec.SCHEMA: PACKAGES})  # beside the base's
    untrusted: bool = False  # as of a base


@dataclass(frozen=True, kw_only=True, slots=True)
class DebFile:
    """The file in which a package of the base came, as the archive's signed index tells it."""

    name: str
    version: str
    architecture: str
    source: str  # "gcc-12 (12.2.0-14)"; the source's name alone where its version is the package's
    size: int
    sha256: str  # hex


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseFiles:
    """Which files a base, or the tools on top of one, was made of; it is about that blob and no other."""

    base: Digest
    debs: tuple[DebFile, ...]  # sorted by name; what the archive did not tell is absent


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedCell:
    """A resolution with every byte named."""

    resolution: Resolution
    wheels: Annotated[tuple[LockedWheel, ...], Meta(min_length=1, max_length=5000)]  # sorted by name
    base: LockedBase
    as_of: fields.Date  # files uploaded on that day (UTC) or later did not take part
    epoch: fields.Epoch  # stands in config, history and overlay
    inputs: fields.Sha256Digest  # of matrix, facts and recipe: what `lock --check` compares
    # as built once: later builds must give the same; empty until recorded
    layers: Annotated[tuple[ImageLayer, ...], Meta(max_length=127)]
    untrusted: bool = False  # an index that it used was
    # wheels that no index was asked for, by name: see public_record.py
    by_record: Annotated[tuple[fields.Name, ...], _SET] = ()
    tools: LockedTools | None = None  # of a devel cell
    # of a devel cell's toolkit, sorted by component
    archives: Annotated[tuple[LockedArchive, ...], Meta(max_length=100)] = ()
    components: fields.Few[LockedComponent] = ()  # by name; what they need lies above all else

    @property
    def os_packages(self) -> tuple[OsPackage, ...]:
        """All of the OS's packages that the image has, by name."""
        more = self.tools.packages if self.tools else ()
        return tuple(
            sorted((*self.base.packages, *more), key=lambda package: (package.name, package.version))
        )


def artefact_json(found: LockedBase | LockedTools) -> dict[str, Any]:
    """Its plain values, packages as name -> version."""
    values: dict[str, Any] = codec.plain(found)
    return values | {"packages": {one.name: one.version for one in found.packages}}


def artefact_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `artefact_json` for `codec.typed`."""
    packages = [{"name": name, "version": version} for name, version in document["packages"].items()]
    return {**document, "packages": packages}
