"""A cell of the matrix and what it resolves to."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from torchkiln.model.digest import Digest, Flavor


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One square of the matrix: what somebody asked for."""

    torch: str  # exact release, "2.7.1"
    cuda: str  # major.minor, "12.1"
    flavor: Flavor
    os: str  # "debian12"
    python: str  # the OS's own, "3.11"
    components: tuple[str, ...] = ()  # what it has beside, by --with; sorted


class Status(str, Enum):
    """How a cell can be had (DESIGN section 3)."""

    NATIVE = "native"
    MINOR_COMPAT = "minor-compat"
    UNAVAILABLE = "unavailable"


class Source(str, Enum):
    """The index that serves the cell's torch wheel."""

    DEFAULT = "default-index"
    PYTORCH = "pytorch"
    OWN = "own"  # no index: where the user says that a component's files lie


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """One build of torch: a wheel variant that exists somewhere."""

    version: str  # "2.7.1+cu126"
    variant: str  # "cu126"
    cuda: str  # "12.6"
    source: Source
    archs: tuple[str, ...]  # ("sm_50", ..., "compute_120")
    cudnn: str | None  # "9.5.1.17"; None where the facts do not tell
    nccl: str | None  # "2.26.2"


@dataclass(frozen=True, kw_only=True, slots=True)
class Toolkit:
    """A devel cell's CUDA toolkit, of its wheels or of NVIDIA's archives; paths are below site-packages."""

    cuda: str  # "13.0": what its nvcc says
    libraries: tuple[str, ...]  # for linkers, "nvidia/cu13/lib/libcudart.so.13"
    folder: str = ""  # of the wheels, "nvidia/cu13"
    programs: tuple[str, ...] = ()  # what lies in the wheels' bin/, "nvcc"
    release: str = ""  # of the archives, "12.1.1"
    archives: Digest | None = None  # of what is known of that release's archives


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolution:
    """A cell's answer: first what decides an image, which a lock keeps; then what only explains it.

    For an unavailable cell `build`, the drivers and `requirements` are empty.
    """

    cell: Cell
    status: Status
    build: Build | None
    min_driver: str | None  # the oldest driver that runs it, "525.60.13"
    full_driver: str | None  # from here on no compatibility mode, "560.35.05"
    requirements: tuple[str, ...]  # what `lock` asks the index for, PEP 508
    constraints: tuple[Constraint, ...]
    limits: tuple[Limit, ...]
    toolkit: Toolkit | None = None  # of a devel cell
    tools: str | None = None  # the OS's tools of a devel cell, by the name that `os_tools.py` gives them
    components: tuple[Component, ...] = ()  # by name

    lockable: bool = field(default=False, compare=False)  # the default index alone is enough
    alternatives: tuple[Build, ...] = field(default=(), compare=False)  # same major, not chosen
    # (torch, cuda) of the nearest cells that work
    nearest: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    why_unavailable: str = field(default="", compare=False)  # a sentence


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """What a user should know of a cell, by the id of a fact. `sentences.limit_text` has the words."""

    fact: str  # "rules.unserved"
    values: tuple[str, ...] = ()  # ("3.7", "10.0")

    def __str__(self) -> str:
        return f"{self.fact}={','.join(self.values)}" if self.values else self.fact

    @classmethod
    def parse(cls, text: str) -> Limit:
        """The inverse of `str`."""
        fact, _, values = text.partition("=")
        return cls(fact=fact, values=tuple(values.split(",")) if values else ())


@dataclass(frozen=True, kw_only=True, slots=True)
class Constraint:
    """A bound on a package, with the id of the fact that asks for it."""

    requirement: str  # PEP 508
    fact: str


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnFile:
    """A file that no index has, by content; where it lies the user says, by the variable of its package."""

    name: str  # "flash-attn", "micromamba"
    version: str
    filename: str
    sha256: str  # hex


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """Something that an image can have on top, for one cell."""

    name: str  # "flash-attn"
    suffix: str  # of tags, "flashattn"
    requires: tuple[str, ...] = ()  # PEP 508
    wheels: tuple[OwnFile, ...] = ()
    program: OwnFile | None = None
