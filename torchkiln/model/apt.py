"""Defines the OS packages of a project, locked as .deb files and as the layer that is made from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from torchkiln.model import fields
from torchkiln.model.lock import DebFile, LockedBase, LockedTools, OsPackage

_SET = {"uniqueItems": True}
_SUITE = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,60}$")]
_TIME = Annotated[str, Meta(pattern=r"^[0-9]{8}T[0-9]{6}Z$")]
Requested = Annotated[tuple[fields.AptPackage, ...], Meta(max_length=200, extra_json_schema=_SET)]
"""Packages by name, or by name and version: "git-lfs=3.3.0-1"; sorted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedApt:
    """The packages that a project adds to the OS of its image: their .deb files, and one layer blob."""

    os: fields.Word  # "debian12"
    requested: Requested
    base: fields.Sha256Digest  # of the base's blob
    tools: fields.Sha256Digest | None = None  # of the blob of a devel image's tools, on the base
    snapshot: Annotated[str, Meta(pattern=r"^[0-9]{8}T[0-9]{6}Z$")] = ""  # of the archive; "": none
    debs: Annotated[tuple[DebFile, ...], Meta(max_length=2000)]  # sorted; without those of base and tools
    digest: fields.Sha256Digest  # of the layer on that base and those tools
    diff_id: fields.Sha256Digest
    size: fields.Bytes
    unpacked: fields.Bytes
    encoder: fields.Line
    untrusted: bool = False  # the files came from an untrusted archive
    # the Date of each suite's Release file, by code name: {"bookworm": "20261128T083012Z"}
    dates: Mapping[_SUITE, _TIME] = field(default_factory=dict, hash=False)

    @property
    def packages(self) -> tuple[OsPackage, ...]:
        """The packages, sorted by name."""
        return packages_of(self.debs)


def packages_of(debs: Iterable[DebFile]) -> tuple[OsPackage, ...]:
    return tuple(OsPackage(name=deb.name, version=deb.version) for deb in debs)


@dataclass(frozen=True, kw_only=True, slots=True)
class OsLayers:
    """The layers of a parent image that have OS packages."""

    base: LockedBase
    tools: LockedTools | None = None

    @property
    def artefacts(self) -> tuple[LockedBase | LockedTools, ...]:
        """The base, and the tools if there are any, lowest first."""
        return (self.base, self.tools) if self.tools else (self.base,)

    @property
    def packages(self) -> tuple[OsPackage, ...]:
        """The packages of all these layers, sorted by name."""
        found = (package for artefact in self.artefacts for package in artefact.packages)
        return tuple(sorted(found, key=lambda package: (package.name, package.version)))

    @property
    def tools_digest(self) -> fields.Sha256Digest | None:
        """The digest of the tools' blob, if there are tools."""
        return self.tools.digest if self.tools else None

    def fits(self, apt: LockedApt) -> bool:
        """Whether *apt* was locked on these layers."""
        return (apt.base, apt.tools) == (self.base.digest, self.tools_digest)
