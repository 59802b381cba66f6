"""Defines a built image."""

from __future__ import annotations

from dataclasses import dataclass

from torchkiln.model.digest import Digest
from torchkiln.model.layer import ImageLayer


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltImage:
    """An image in an OCI layout: `ref` is its name in index.json."""

    tag: str
    manifest: Digest
    config: Digest
    layout: str  # path of the layout folder
    ref: str
    layers: tuple[ImageLayer, ...]
    base_moved: tuple[str, ...] = ()  # packages whose versions differ between the rebuilt base and the lock
