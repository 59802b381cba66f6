"""Data classes for what the gate reads from a project's image and its parent image. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

WHITEOUT = ".wh."


class Entry(Protocol):
    """An entry of a layer, or what is at a path of an image."""

    @property
    def kind(self) -> str:
        """One of: file, folder, link, hard link, char, block, pipe."""

    @property
    def mode(self) -> int: ...
    @property
    def uid(self) -> int: ...
    @property
    def gid(self) -> int: ...
    @property
    def sha256(self) -> str:
        """The SHA-256 of a file, in hex."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerEntry:
    """An entry in the tar of a project's layer; `path` is relative to /."""

    path: str
    kind: str
    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    size: int = 0
    sha256: str = ""
    target: str = ""  # of a link
    xattrs: bool = False  # it has extended attributes


@dataclass(frozen=True, kw_only=True, slots=True)
class Below:
    """The parent image: its files, and which of them a project must not change."""

    tree: Mapping[str, Entry] = field(repr=False)
    owners: Mapping[str, str] = field(repr=False)  # path -> package, by the RECORDs
    fixed: frozenset[str]  # packages that a project must not change
    units: Mapping[str, str]  # folder -> the fixed package that owns all files in it
    modules: frozenset[str]  # names by which the fixed packages are imported
    standard: frozenset[str]  # modules of the standard library
    libraries: Mapping[str, str]  # name of a shared library -> the fixed package that has it
    programs: Mapping[str, str]  # name -> path: programs in `folders`
    folders: tuple[str, ...]  # the folders of PATH, in its order, without `scripts`
    site: str  # site-packages, relative to /
    scripts: str  # the environment's folder bin, relative to /

    @property
    def prefix(self) -> str:
        """The folder of the environment, relative to /."""
        return self.scripts.rpartition("/")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """What the packages of the project's layers state, and what project.json states about them."""

    files: Mapping[str, tuple[str, ...]]  # path -> its hashes in the RECORDs, "sha256=..." or empty
    texts: Mapping[str, str]  # path -> METADATA or entry_points.txt
    wheels: Mapping[str, str]  # project.json: package -> version


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """What the layers of a project change in the parent image."""

    faults: tuple[str, ...]  # sentences: changes that the proof of the parent image does not allow
    replaced: tuple[str, ...]  # packages of the parent image that have other files or another version
    added: tuple[str, ...]  # "datasets 4.8.5": those of the project's layers
    at_start: tuple[str, ...]  # .pth files: Python runs them at each start
    has_source: bool  # there are files in /app/src
    of_system: bool = False  # some of the faults are about OS packages


@dataclass(frozen=True, kw_only=True, slots=True)
class OsLayer:
    """The layer of OS packages: the first above those of the parent image."""

    entries: tuple[LayerEntry, ...]
    packages: frozenset[tuple[str, str, str]]  # name, version, architecture, by project.json
    files: Mapping[str, bytes] = field(repr=False)  # path -> content: files whose content is compared
    sonames: Mapping[str, str | None]  # ELF file -> its SONAME, "" without one; None: it cannot be read
    owners: Mapping[str, str] = field(repr=False)  # path -> package, by dpkg's lists in the layer
    below: Mapping[str, bytes] = field(repr=False)  # the same files in the parent image

    @property
    def names(self) -> frozenset[str]:
        """The names of the packages."""
        return frozenset(name for name, _, _ in self.packages)
