"""The plan of an image: its layers, its files and its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchkiln.model.lock import LockedArchive, LockedBase, LockedCell, LockedTools, LockedWheel

LayerKind = Literal["base", "wheels", "tools", "toolkit", "program", "overlay"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlayFile:
    """One file that goes into the image as it is."""

    path: str  # relative to /, "etc/torchkiln/image.json"
    mode: int
    data: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlayLink:
    """A symbolic link."""

    path: str  # relative to /
    target: str  # as it stands in the link


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerSpec:
    """One layer, told by what goes into it."""

    kind: LayerKind
    title: str  # "torch 2.7.1", "dependencies (98 wheels)"
    wheels: tuple[LockedWheel, ...] = ()  # of a program: its one file
    archives: tuple[LockedArchive, ...] = ()
    files: tuple[OverlayFile, ...] = ()
    links: tuple[OverlayLink, ...] = ()
    folders: tuple[tuple[str, int], ...] = ()  # (path, mode), where that is not 0755
    artefact: LockedBase | LockedTools | None = None  # what the layer is as it comes: nothing is made


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageConfig:
    """The part of an image that is not files."""

    env: tuple[tuple[str, str], ...]
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    workdir: str
    ports: tuple[str, ...]  # "8888/tcp"
    volumes: tuple[str, ...]
    labels: tuple[tuple[str, str], ...]
    stop_signal: str
    healthcheck: Healthcheck | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ImagePlan:
    """Ordered layers and config, for either engine. A pure function of the lock."""

    locked: LockedCell
    tag: str
    aliases: tuple[str, ...]
    layers: tuple[LayerSpec, ...]
    config: ImageConfig
    epoch: int
    recipe: int  # numbered behaviour: raise it when the same lock would give other bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Healthcheck:
    """Docker's extension of the image config; times in seconds."""

    command: tuple[str, ...]
    interval: int
    timeout: int
    start_period: int
    retries: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What an image sets for something that it has: a toolkit, a program."""

    programs: tuple[str, ...] = ()  # folders on PATH
    libraries: tuple[str, ...] = ()  # on LD_LIBRARY_PATH: what is linked here starts here, without an rpath
    env: tuple[tuple[str, str], ...] = ()
