"""Defines the catalogue: for each locked image its content, its layers and the runs of its checks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchkiln.model.cell import Resolution
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob
from torchkiln.model.lock import LockedCell
from torchkiln.model.report import Finding
from torchkiln.util.sentences import Sentence, Value


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedPackage:
    """A package of an image, from its lock; the lock has no file of an OS package."""

    system: str  # "python", "os", "toolkit": as in `diff`
    name: str
    version: str
    size: int = 0  # bytes of its file; 0: not known
    sha256: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedLayer:
    """A layer, and the other images of the catalogue with the same blob."""

    title: str
    blob: Blob | None  # None: no build recorded it
    images: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A smoke report: where the checks ran, and their outcomes."""

    file: str  # its name in the folder of reports
    image: Digest
    current: bool  # whether it is of the image that the lock gives
    same_stack: bool  # for an earlier image: whether it had the GPU stack of the lock
    when: str  # "2026-11-21T17:05:16Z"; empty: not recorded
    verdict: str
    gpus: str  # "2 × NVIDIA H200"; empty: none
    capabilities: tuple[str, ...]
    driver: str
    signed: bool
    signers: tuple[str, ...]  # fingerprints of the keys that signed it and are in the folder of reports
    findings: tuple[Finding, ...]

    @property
    def passed_on_gpus(self) -> bool:
        """Whether checks that need a GPU passed, and none failed."""
        on_gpus = any(finding.tier > 0 and finding.outcome == "passed" for finding in self.findings)
        return bool(self.gpus) and on_gpus and not self.count("failed")

    def count(self, outcome: str) -> int:
        return sum(finding.outcome == outcome for finding in self.findings)


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """The image that has the tag in the registry."""

    digest: Digest
    notices: tuple[Value, ...]  # "retracted: the reason"
    retracted: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedImage:
    tag: str
    aliases: tuple[str, ...]
    resolution: Resolution  # the present resolution, from which the lock was made
    locked: LockedCell
    state: str  # as in docs/grid.md: "built and proved"
    digest: Digest | None  # that the lock gives; None: it records no layers
    reason: Value  # why it is native or minor-compat
    limits: tuple[Sentence, ...]
    gpus: tuple[tuple[str, tuple[str, ...]], ...]  # (capability, names) for which it has device code
    packages: tuple[ListedPackage, ...]
    layers: tuple[ListedLayer, ...]
    runs: tuple[Run, ...]  # the latest first; those of the current image before others
    published: Published | None = None

    @property
    def size(self) -> int | None:
        """The compressed layers' size in bytes; None: not all were recorded."""
        return _sum(layer.blob.size if layer.blob else None for layer in self.layers)

    @property
    def unpacked(self) -> int | None:
        """The unpacked layers' size in bytes; None: not all were recorded."""
        return _sum(layer.blob.unpacked if layer.blob else None for layer in self.layers)

    @property
    def locked_size(self) -> int | None:
        """The size in bytes of the locked files of the image; None: the lock does not have all sizes."""
        artefacts = (artefact.size for artefact in self.locked.artefacts)
        files = (package.size or None for package in self.packages if package.system != "os")
        return _sum((*artefacts, *files))

    @property
    def shared(self) -> int:
        """The size in bytes of the compressed layers that other images of the catalogue share."""
        return sum(layer.blob.size for layer in self.layers if layer.blob and layer.images)

    @property
    def tested_on(self) -> tuple[str, ...]:
        """The GPUs on which checks passed in the current image or its GPU stack, by verified reports."""
        runs = (run for run in self.runs if run.signers and run.passed_on_gpus)
        counted = (run for run in runs if run.current or run.same_stack)
        return tuple(dict.fromkeys(run.gpus for run in counted))


@dataclass(frozen=True, kw_only=True, slots=True)
class Catalogue:
    """The images, the newest torch first, and the names that the commands use."""

    local: str  # "pytorch-cuda": what `build --load` calls the images
    registry: str  # "registry.example/team/pytorch"; empty: no registry was named
    images: tuple[ListedImage, ...]

    @property
    def repository(self) -> str:
        """The repository that the pages show for the images."""
        return self.registry or self.local


def _sum(sizes: Iterable[int | None]) -> int | None:
    total = 0
    for size in sizes:
        if size is None:
            return None
        total += size
    return total
