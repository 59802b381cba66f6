"""Defines a layer of an image, a title and a blob, and the image that has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from torchkiln.model import fields
from torchkiln.model.digest import Digest
from torchkiln.util import codec

LayerFormat = Literal["gzip", "zstd"]
LAYER_FORMATS: tuple[LayerFormat, ...] = get_args(LayerFormat)
DEFAULT_FORMAT: LayerFormat = "gzip"
NAMED_FORMATS = tuple(name for name in LAYER_FORMATS if name != DEFAULT_FORMAT)


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


"""The format of layers in locks and of tags without a suffix: every engine reads it."""

"""The formats that have a tag suffix."""


def tag_suffix(layer_format: LayerFormat) -> str:
    """The suffix of all tags of an image whose layers have this format, ``-zstd``; empty for the default."""
    return "" if layer_format == DEFAULT_FORMAT else f"-{layer_format}"


def split_format(tag: str) -> tuple[str, LayerFormat]:
    """*tag* without the suffix, and its format."""
    for layer_format in NAMED_FORMATS:
        if tag.endswith(suffix := tag_suffix(layer_format)):
            return tag.removesuffix(suffix), layer_format
    return tag, DEFAULT_FORMAT


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
