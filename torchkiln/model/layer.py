"""A layer of an image: a title and a blob."""

from __future__ import annotations

from dataclasses import dataclass

from torchkiln.model.digest import Digest


@dataclass(frozen=True, kw_only=True, slots=True)
class Blob:
    """A compressed layer and the tar in it; sizes in bytes."""

    digest: Digest
    diff_id: Digest  # of the tar
    size: int
    unpacked: int  # of the tar


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageLayer:
    """A layer as it was built, or as a lock has recorded it."""

    title: str  # "torch 2.7.1"
    blob: Blob
