"""A built layer and a built image."""

from __future__ import annotations

from dataclasses import dataclass

from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedBase, LockedTools


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
