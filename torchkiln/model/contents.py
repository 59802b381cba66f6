"""What is in an image, as values: path by path, and layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["file", "folder", "link", "device", "pipe"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Thing:
    """What is at one path. A hard link is the file that it leads to.

    `text` is there for the few files whose lines are compared, and only then.
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


#: By path from the root, without a slash in front. The root itself is not in it.
Tree = Mapping[str, Thing]


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeImage:
    """An image down to its files. `settings` are its configuration by name: "Env PATH", "User"."""

    tree: Tree
    settings: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerContents:
    """One layer as it stands: its files, the texts that name packages, and what it deletes of those below."""

    files: int
    bytes: int  # of files' contents
    texts: Mapping[str, str]
    deleted: tuple[str, ...]  # paths; one that ends in a slash means all that is in that folder
    links: Mapping[str, str] = field(default_factory=dict)  # those among the paths that were wanted


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """A layer of an image, told apart by the digest of its tar."""

    diff_id: str
    title: str
    size: int | None  # bytes as it is transferred; None: nobody told
    contents: LayerContents


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """An installed package. `place` is the folder of a Python distribution, else empty.

    toolkit: an archive of NVIDIA's CUDA toolkit.
    """

    system: Literal["python", "os", "toolkit"]
    place: str
    name: str
    version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LayeredImage:
    """An image by its layers, lowest first, and what they install."""

    digest: str
    settings: Mapping[str, str]
    layers: tuple[Layer, ...]
    packages: tuple[Package, ...]
