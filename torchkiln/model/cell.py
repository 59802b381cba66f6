"""Defines a cell of the matrix and its resolution."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from msgspec import Meta

from torchkiln.model import fields
from torchkiln.model.device_code import Gpus
from torchkiln.model.digest import Flavor
from torchkiln.model.operating_system import base_name
from torchkiln.model.platform import DEFAULT_PLATFORM, PLATFORMS
from torchkiln.util import codec


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One image that the matrix describes."""

    torch: fields.Version  # exact release, "2.7.1"
    cuda: fields.Version  # major.minor, "12.1"
    flavor: Flavor
    os: fields.OsName  # "debian12"; with a different Python than its own "python312-debian12"
    python: fields.Version  # "3.11"
    # compute capabilities whose device code the image keeps, ascending; (): all of the wheels'
    gpus: Gpus = ()
    own_use: bool = False  # NVIDIA's libraries are cut, too; their licence may allow this for own use only
    platform: fields.PlatformName = DEFAULT_PLATFORM

    @property
    def system(self) -> str:
        """The name of its base in folders: "debian12", on another platform "debian12-arm64"."""
        return f"{base_name(self.os)}{PLATFORMS[self.platform].suffix}"


class Status(str, Enum):
    """Whether a build of torch has exactly the cell's CUDA version: see `matrix.resolve`."""

    NATIVE = "native"
    MINOR_COMPAT = "minor-compat"
    UNAVAILABLE = "unavailable"


class Source(str, Enum):
    """Where a wheel comes from."""

    DEFAULT = "default-index"
    PYTORCH = "pytorch"
    PROJECT = "project"  # no index: see `ProjectLock.origins`


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchBuild:
    """One CUDA build of a torch release."""

    version: fields.Version  # "2.7.1+cu126"
    variant: fields.Word  # "cu126"
    cuda: fields.Version  # "12.6"
    source: Source
    archs: Annotated[tuple[fields.Architecture, ...], Meta(max_length=100)]  # ("sm_50", ..., "compute_120")
    cudnn: fields.LibraryVersion | None  # "9.5.1.17"; None: not known
    nccl: fields.LibraryVersion | None  # "2.26.2"


@dataclass(frozen=True, kw_only=True, slots=True)
class Toolkit:
    """A devel cell's CUDA toolkit, from wheels or from NVIDIA's archives; paths are below site-packages."""

    cuda: fields.Version  # "13.0": the version that its nvcc reports
    libraries: fields.Some[fields.Library]  # for linkers, "nvidia/cu13/lib/libcudart.so.13"
    folder: fields.Folder = ""  # of the wheels, "nvidia/cu13"
    programs: fields.Some[fields.Program] = ()  # in the wheels' bin/, "nvcc"
    release: fields.ToolkitRelease = ""  # of the archives, "12.1.1"
    archives: fields.Sha256Digest | None = None  # of the facts about that release's archives


@dataclass(frozen=True, kw_only=True, slots=True)
class PythonArchive:
    """The archive of a standalone build of CPython, by hash. The matrix says where it is."""

    filename: fields.FileName  # "cpython-3.12.8+20241219-x86_64-unknown-linux-gnu-install_only.tar.gz"
    sha256: fields.Sha256


#: The JSON schema of limits in a document: a list of their texts.
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
    """How a cell is built. The fields after `standalone` only explain it, and no lock contains them.

    For an unavailable cell `build`, the drivers and `requirements` are empty.
    """

    cell: Cell
    status: Status = field(metadata={codec.SCHEMA: {"enum": ["native", "minor-compat"]}})
    build: TorchBuild | None = field(metadata={codec.SCHEMA: {"$ref": "#/$defs/TorchBuild"}})
    min_driver: fields.Driver | None  # the oldest driver that runs the image, "525.60.13"
    full_driver: fields.Driver | None  # the oldest that needs no compatibility mode, "560.35.05"
    requirements: fields.Some[fields.Line]  # PEP 508; `lock` resolves them
    constraints: fields.Some[Constraint]
    limits: tuple[Limit, ...] = field(metadata={codec.SCHEMA: LIMITS})
    toolkit: Toolkit | None = None  # of a devel cell
    tools: fields.OsTools | None = None  # of a devel cell: see `os_tools.py`
    standalone: PythonArchive | None = None  # of a system with a different Python than its own

    lockable: bool = field(default=False, compare=False)  # the default index alone is enough
    # other builds of the same CUDA major version
    alternatives: tuple[TorchBuild, ...] = field(default=(), compare=False)
    # (torch, cuda) of the nearest cells that work
    nearest: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    why_unavailable: str = field(default="", compare=False)  # a sentence


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """A restriction of a cell, by the id of a fact; `sentences.limit_text` returns its sentence."""

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
    """A version constraint on a package, with the id of the fact that requires it."""

    requirement: fields.Line  # PEP 508
    fact: fields.FactId
