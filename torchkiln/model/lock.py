"""Locked wheels, archives, bases and tools, and the lock of a cell: every byte is named."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torchkiln.model.cell import Resolution, Source
from torchkiln.model.digest import Digest
from torchkiln.model.layer import ImageLayer


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedWheel:
    """One wheel, by content. No URL: where it lies is the index's affair."""

    name: str  # normalized, "nvidia-cublas-cu12"
    version: str
    filename: str
    sha256: str  # hex
    size: int  # bytes; 0: nobody measured it, the hash is by public record
    index: Source
    at: str = ""  # its name where it lies, if that is another than its own metadata give it


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedComponent:
    """What a component adds to a cell's lock."""

    name: str
    wheels: tuple[str, ...]  # names, among the lock's own; sorted
    program: LockedWheel | None = None  # its file, which is no wheel but is fetched like one


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedArchive:
    """One part of NVIDIA's toolkit, an xz tar, by content. No URL: where it lies is the user's affair."""

    component: str  # "cuda_nvcc"
    version: str  # its own, "12.1.105"
    path: str  # below the address of NVIDIA's layout, "cuda_nvcc/linux-x86_64/cuda_nvcc-...-archive.tar.xz"
    size: int
    sha256: str  # hex

    @property
    def filename(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class OsPackage:
    """One package of the base."""

    name: str
    version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedBase:
    """The base as an artefact: one layer blob and what is in it."""

    os: str  # "debian12"
    python: str  # full version of its interpreter, "3.11.2"
    digest: Digest  # of the compressed blob
    diff_id: Digest
    size: int
    unpacked: int
    encoder: str  # "libdeflate 0.9.0 level 6"
    packages: tuple[OsPackage, ...]
    stand_in: bool = False  # its packages came from no more than a stand-in for the archive


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedTools:
    """The OS's tools as an artefact: a layer blob on top of one base, and what it adds."""

    os: str  # "debian12"
    name: str  # "devel", "devel-gcc11"
    base: Digest  # of the base's blob, on which alone it fits
    digest: Digest
    diff_id: Digest
    size: int
    unpacked: int
    encoder: str
    packages: tuple[OsPackage, ...]  # beside the base's
    stand_in: bool = False  # as of a base


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
    wheels: tuple[LockedWheel, ...]  # sorted by name
    base: LockedBase
    as_of: str  # ISO date: newer releases did not take part
    epoch: int  # seconds; stands in config, history and overlay
    inputs: Digest  # of matrix, facts and recipe: what `lock --check` compares
    layers: tuple[ImageLayer, ...]  # as built once: later builds must give the same; empty until recorded
    stand_ins: tuple[Source, ...] = ()  # the indexes that were no more than stand-ins for the real ones
    by_record: tuple[str, ...] = ()  # wheels that no index was asked for, by name: see public_record.py
    tools: LockedTools | None = None  # of a devel cell
    archives: tuple[LockedArchive, ...] = ()  # of a devel cell's toolkit, sorted by component
    components: tuple[LockedComponent, ...] = ()  # by name; what they need lies above all else

    @property
    def os_packages(self) -> tuple[OsPackage, ...]:
        """All of the OS's packages that the image has, by name."""
        more = self.tools.packages if self.tools else ()
        return tuple(
            sorted((*self.base.packages, *more), key=lambda package: (package.name, package.version))
        )


def artefact_json(found: LockedBase | LockedTools) -> dict[str, Any]:
    """Packages as name → version; no stand-in is no word."""
    values = asdict(found) | {"packages": {one.name: one.version for one in found.packages}}
    return {key: value for key, value in values.items() if key != "stand_in" or value}
