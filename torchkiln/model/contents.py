"""Defines the contents of an image, by path and by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["file", "folder", "link", "device", "pipe"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeEntry:
    """The file, folder or other entry at one path. A hard link has the values of the file that it refers to.

    `text` is set only for files whose lines are compared.
    """

    kind: Kind
    mode: int
    owner: tuple[int, int]  # uid, gid
    size: int = 0
    sha256: str = ""
    link: str = ""
    device: tuple[str, int, int] | None = None  # "char" or "block", major, minor
    xattrs: tuple[tuple[str, str], ...] = ()
    text: str | None = field(default=None, repr=False)


#: Entries by path, which is relative to the root; the root itself has no entry.
Tree = Mapping[str, TreeEntry]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerContents:
    """The files of one layer, and the paths that it deletes in the layers below.

    `texts` has the contents of the requested files by path, such as METADATA.
    """

    files: int
    bytes: int  # of files' contents
    texts: Mapping[str, str]
    deleted: tuple[str, ...]  # a trailing slash: everything in that folder
    links: Mapping[str, str] = field(default_factory=dict)  # requested path -> target


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """A layer of an image, identified by the digest of its tar."""

    diff_id: str
    title: str
    size: int | None  # bytes, compressed; None: not known
    contents: LayerContents


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """An installed package. `place` is the folder of a Python distribution, else empty.

    The system "toolkit" means an archive of NVIDIA's CUDA toolkit.
    """

    system: Literal["python", "os", "toolkit"]
    place: str
    name: str
    version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LayeredImage:
    """The layers of an image, lowest first, and the packages that they install."""

    digest: str
    settings: Mapping[str, str]
    layers: tuple[Layer, ...]
    packages: tuple[Package, ...]
