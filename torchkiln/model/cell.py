"""A cell of the matrix and what it resolves to."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from msgspec import Meta

from torchkiln.model import fields
from torchkiln.model.digest import Flavor
from torchkiln.util import codec

_UNIQUE = {"uniqueItems": True}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One square of the matrix: what somebody asked for."""

    torch: fields.Version  # exact release, "2.7.1"
    cuda: fields.Version  # major.minor, "12.1"
    flavor: Flavor
    os: fields.Word  # "debian12"
    python: fields.Version  # the OS's own, "3.11"
    # what it has beside, by --with; sorted
    components: Annotated[tuple[fields.Name, ...], Meta(max_length=20, extra_json_schema=_UNIQUE)] = ()


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

    version: fields.Version  # "2.7.1+cu126"
    variant: fields.Word  # "cu126"
    cuda: fields.Version  # "12.6"
    source: Source
    archs: Annotated[tuple[fields.Architecture, ...], Meta(max_length=100)]  # ("sm_50", ..., "compute_120")
    cudnn: fields.LibraryVersion | None  # "9.5.1.17"; None where the facts do not tell
    nccl: fields.LibraryVersion | None  # "2.26.2"


@dataclass(frozen=True, kw_only=True, slots=True)
class Toolkit:
    """A devel cell's CUDA toolkit, of its wheels or of NVIDIA's archives; paths are below site-packages."""

    cuda: fields.Version  # "13.0": what its nvcc says
    libraries: fields.Some[fields.Library]  # for linkers, "nvidia/cu13/lib/libcudart.so.13"
    folder: fields.Folder = ""  # of the wheels, "nvidia/cu13"
    programs: fields.Some[fields.Program] = ()  # what lies in the wheels' bin/, "nvcc"
    release: fields.ToolkitRelease = ""  # of the archives, "12.1.1"
    archives: fields.Sha256Digest | None = None  # of what is known of that release's archives


#: How a document has limits: as the text of each.
LIMITS = {
    "type": "array",
    "maxItems": 200,
    "items": {
        "type": "string",
        "pattern": r"^(traps|rules)\.[a-z0-9][a-z0-9.-]{0,60}(=[^,=\s]{1,250}(,[^,=\s]{1,250}){0,99})?$",
        "maxLength": 2000,
        "description": 'the id of a fact, and its values, "rules.unserved=3.7,10.0"',
    },
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolution:
    """A cell's answer: first what decides an image, which a lock keeps; then what only explains it.

    For an unavailable cell `build`, the drivers and `requirements` are empty.
    """

    cell: Cell
    status: Status = field(metadata={codec.SCHEMA: {"enum": ["native", "minor-compat"]}})
    build: Build | None = field(metadata={codec.SCHEMA: {"$ref": "#/$defs/Build"}})
    min_driver: fields.Driver | None  # the oldest driver that runs it, "525.60.13"
    full_driver: fields.Driver | None  # from here on no compatibility mode, "560.35.05"
    requirements: fields.Some[fields.Line]  # what `lock` asks the index for, PEP 508
    constraints: fields.Some[Constraint]
    limits: tuple[Limit, ...] = field(metadata={codec.SCHEMA: LIMITS})
    toolkit: Toolkit | None = None  # of a devel cell
    tools: fields.OsTools | None = None  # of a devel cell, by the name that `os_tools.py` gives them
    components: fields.Few[Component] = ()  # by name

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

    requirement: fields.Line  # PEP 508
    fact: fields.FactId


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnFile:
    """A file that no index has, by content; where it lies the user says, by the variable of its package."""

    name: fields.Name  # "flash-attn", "micromamba"
    version: fields.Version
    filename: fields.FileName
    sha256: fields.Sha256


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """Something that an image can have on top, for one cell."""

    name: fields.Name  # "flash-attn"
    suffix: fields.Word  # of tags, "flashattn"
    requires: fields.Some[fields.Line] = ()  # PEP 508
    wheels: fields.Some[OwnFile] = ()
    program: OwnFile | None = None
