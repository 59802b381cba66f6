"""Defines a layer of an image: a title and a blob."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchkiln.model import fields
from torchkiln.util import codec


@dataclass(frozen=True, kw_only=True, slots=True)
class Blob:
    """A compressed layer and the tar in it; sizes in bytes."""

    digest: fields.Sha256Digest
    diff_id: fields.Sha256Digest  # of the tar
    size: fields.Bytes
    unpacked: fields.Bytes  # of the tar


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageLayer:
    """A layer as it was built, or as a lock records it."""

    title: fields.Line  # "torch 2.7.1"
    blob: Blob = field(metadata={codec.INLINE: True})
