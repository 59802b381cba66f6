"""Defines the plan of an image: its layers, files and configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

from torchkiln.model.apt import LockedApt
from torchkiln.model.device_code import DeviceCode
from torchkiln.model.layer import Blob
from torchkiln.model.lock import (
    LockedArchive,
    LockedBase,
    LockedCell,
    LockedStandalone,
    LockedTools,
    LockedWheel,
)
from torchkiln.model.recipe import ImagePython


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlayFile:
    """One file that is copied into the image."""

    path: str  # relative to /, "etc/torchkiln/image.json"
    mode: int
    data: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlayLink:
    path: str  # relative to /
    target: str  # as written in the link


@dataclass(frozen=True, kw_only=True, slots=True)
class ArtefactLayer:
    """A layer that is the blob of a base, the OS's tools, a standalone Python or a project's OS packages."""

    title: str  # "debian12 base (210 packages)"
    artefact: LockedBase | LockedTools | LockedStandalone | LockedApt

    @property
    def kind(self) -> Literal["base", "tools", "standalone", "apt"]:
        """The layer's kind in the output of `plan --json`."""
        match self.artefact:
            case LockedBase():
                return "base"
            case LockedTools():
                return "tools"
            case LockedStandalone():
                return "standalone"
            case LockedApt():
                return "apt"

    @property
    def blob(self) -> Blob:
        found = self.artefact
        return Blob(digest=found.digest, diff_id=found.diff_id, size=found.size, unpacked=found.unpacked)

    @property
    def size(self) -> int:
        """The size of the blob in bytes."""
        return self.artefact.size


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelLayer:
    """Wheels, installed for one Python, which compiles the byte-code."""

    kind: ClassVar = "wheels"
    title: str  # "torch 2.7.1", "dependencies (98 wheels)"
    wheels: tuple[LockedWheel, ...]
    python: ImagePython
    device_code: DeviceCode | None = None  # `device_code.wheels` names only wheels of this layer

    @property
    def inputs(self) -> tuple[LockedWheel, ...]:
        """The files that a build downloads for it."""
        return self.wheels

    @property
    def size(self) -> int | None:
        """The size of the wheels in bytes; None: the size of a wheel is not known."""
        sizes = [wheel.size for wheel in self.wheels]
        return sum(sizes) if all(sizes) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolkitLayer:
    """Archives of NVIDIA's toolkit, installed below one folder."""

    kind: ClassVar = "toolkit"
    title: str  # "CUDA 12.1.1: cuda_gdb 12.1.105"
    archives: tuple[LockedArchive, ...]
    home: str  # relative to /, "usr/local/cuda-12.1"

    @property
    def inputs(self) -> tuple[LockedArchive, ...]:
        """The files that a build downloads for it."""
        return self.archives

    @property
    def size(self) -> int:
        """The size of the archives in bytes."""
        return sum(archive.size for archive in self.archives)


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlayLayer:
    """torchkiln's own files, which every image has."""

    kind: ClassVar = "overlay"
    title: str  # "torchkiln (12 files)"
    files: tuple[OverlayFile, ...] = ()
    links: tuple[OverlayLink, ...] = ()

    @property
    def size(self) -> int:
        """The size of the files in bytes."""
        return sum(len(file.data) for file in self.files)


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovalLayer:
    """Removes paths of the layers below, by the whiteouts of OCI."""

    kind: ClassVar = "removal"
    title: str  # "without fsspec 2026.9.0"
    paths: tuple[str, ...]  # relative to /, sorted; a folder with everything in it

    @property
    def size(self) -> int:
        """The size of the files in bytes: whiteouts are empty."""
        return 0

    @property
    def files(self) -> tuple[OverlayFile, ...]:
        """The whiteouts."""
        split = (path.rpartition("/") for path in self.paths)
        return tuple(
            OverlayFile(path=f"{folder}{slash}{WHITEOUT}{name}", mode=0o644, data=b"")
            for folder, slash, name in split
        )


WHITEOUT = ".wh."  # prefix of OCI's whiteouts: `.wh.x` in a layer removes `x` of the layers below

MadeLayer = WheelLayer | ToolkitLayer
"""Made from locked files, and cached by a key (`build.cache_keys`)."""
PlannedLayer = ArtefactLayer | MadeLayer | RemovalLayer | OverlayLayer
L = TypeVar("L", bound=PlannedLayer)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageConfig:
    env: tuple[tuple[str, str], ...]
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    workdir: str
    ports: tuple[str, ...]  # "8888/tcp"
    volumes: tuple[str, ...]
    stop_signal: str
    healthcheck: Healthcheck | None
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImagePlan:
    """Ordered layers and config, from which either engine builds the image."""

    locked: LockedCell
    tag: str
    aliases: tuple[str, ...]
    layers: tuple[PlannedLayer, ...]  # lowest first; the last is the overlay
    config: ImageConfig
    epoch: int
    recipe: int  # see `model.recipe.RECIPE`
    requested: tuple[str, ...] = ()  # PEP 508: a project's, in addition to the requirements in `locked`

    def of(self, kind: type[L]) -> tuple[L, ...]:
        """The layers of one *kind*, in order."""
        return tuple(layer for layer in self.layers if isinstance(layer, kind))

    @property
    def made(self) -> tuple[MadeLayer, ...]:
        """The layers that a build makes from downloads, in order."""
        return tuple(layer for layer in self.layers if isinstance(layer, MadeLayer))

    @property
    def overlay(self) -> OverlayLayer:
        """torchkiln's own files, the top layer."""
        top = self.layers[-1]
        assert isinstance(top, OverlayLayer)
        return top


@dataclass(frozen=True, kw_only=True, slots=True)
class Healthcheck:
    """Docker's extension of the image config; times in seconds."""

    command: tuple[str, ...]
    interval: int
    timeout: int
    start_period: int
    retries: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentSettings:
    """The environment that a toolkit needs."""

    programs: tuple[str, ...] = ()  # folders on PATH
    libraries: tuple[str, ...] = ()  # folders on LD_LIBRARY_PATH, for programs linked without an rpath
    env: tuple[tuple[str, str], ...] = ()
