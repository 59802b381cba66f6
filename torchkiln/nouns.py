"""The nouns of the pipeline: frozen, typed, hashable. Of ours this module imports `parts` alone.

Each noun's file form is its `to_json`/`from_json` in the module named after the arrow that makes it.
Sizes are bytes, times seconds, digests ``sha256:<64 hex digits>``, versions PEP 440 strings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NewType

from torchkiln.parts import Component, Constraint, Healthcheck, Limit

Digest = NewType("Digest", str)
Flavor = Literal["runtime", "devel"]
LayerFormat = Literal["gzip", "gzip-joined", "zstd"]  # many gzip members a layer, one, or a zstd frame

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def parse_digest(text: str) -> Digest:
    """*text* as a digest.

    :raises ValueError: it is not ``sha256:`` and 64 lower-case hex digits.
    """
    if not _DIGEST.fullmatch(text):
        raise ValueError(f"not a sha256 digest: {text!r}")
    return Digest(text)


# --- what was asked -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One square of the matrix: what somebody asked for."""

    torch: str  # exact release, "2.7.1"
    cuda: str  # major.minor, "12.1"
    flavor: Flavor
    os: str  # "debian12"
    python: str  # the OS's own, "3.11"
    components: tuple[str, ...] = ()  # what it has beside, by --with; sorted


# --- what it resolves to --------------------------------------------------------------------------


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
    tools: str | None = None  # the OS's tools of a devel cell, by the name that `tools.py` gives them
    components: tuple[Component, ...] = ()  # by name

    lockable: bool = field(default=False, compare=False)  # the default index alone is enough
    alternatives: tuple[Build, ...] = field(default=(), compare=False)  # same major, not chosen
    # (torch, cuda) of the nearest cells that work
    nearest: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    why_unavailable: str = field(default="", compare=False)  # a sentence


# --- every byte named -----------------------------------------------------------------------------


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
class LockedLayer:
    """A layer that was built once from this lock: later builds must give the same."""

    title: str
    digest: Digest
    diff_id: Digest
    size: int
    unpacked: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedCell:
    """A resolution with every byte named."""

    resolution: Resolution
    wheels: tuple[LockedWheel, ...]  # sorted by name
    base: LockedBase
    as_of: str  # ISO date: newer releases did not take part
    epoch: int  # seconds; stands in config, history and overlay
    inputs: Digest  # of matrix, facts and recipe: what `lock --check` compares
    layers: tuple[LockedLayer, ...]  # empty until recorded
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


# --- what the image will be -----------------------------------------------------------------------

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


# --- what came out --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltLayer:
    """A layer as it lies in the store."""

    title: str
    digest: Digest
    diff_id: Digest
    size: int
    unpacked: int

    @classmethod
    def of_artefact(cls, found: LockedBase | LockedTools, title: str) -> BuiltLayer:
        """The base or the tools, each of which is a layer as it comes."""
        return cls(
            title=title, digest=found.digest, diff_id=found.diff_id, size=found.size, unpacked=found.unpacked
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltImage:
    """An image in an OCI layout: `ref` is its name in index.json."""

    tag: str
    manifest: Digest
    config: Digest
    layout: str  # path of the layout folder
    ref: str
    layers: tuple[BuiltLayer, ...]
    base_moved: tuple[str, ...] = ()  # packages by which a rebuilt base differs from the lock


# --- what was seen inside it ----------------------------------------------------------------------

Outcome = Literal["passed", "failed", "skipped", "not-applicable"]
Verdict = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One check's outcome; `measured` and `threshold` are JSON texts."""

    id: str
    tier: int
    outcome: Outcome
    seconds: float
    message: str
    measured: str
    threshold: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SmokeReport:
    """What the checks saw inside one image, bound to its manifest digest; or where there was no image."""

    image: Digest | None  # None, like `tag`: an environment, which no gate clears
    tag: str | None
    suite: Digest
    runtime: str
    tool: str  # version of torchkiln, "0.1.0"
    when: str | None  # the run's beginning in UTC, "2026-11-21T17:05:16Z"; None: nobody told
    nonce: str | None  # the word that whoever asked for this run gave to be told back
    findings: tuple[Finding, ...]
    verdict: Verdict
    host: str  # JSON text: kernel, cores, driver, GPUs


@dataclass(frozen=True, kw_only=True, slots=True)
class Witness:
    """A report as it was handed in, and whose signatures on it are good."""

    name: str  # of its file, for messages
    report: SmokeReport
    signed: bool  # by anybody, looked at or not
    signers: tuple[str, ...]  # fingerprints of those trusted keys whose signature fits
    own: bool = False  # this machine ran it: it lies in the cache as it was made
    envelope: bytes | None = field(default=None, repr=False)  # the signed statement, as it was handed in
