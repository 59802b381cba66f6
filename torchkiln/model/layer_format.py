"""The compressions of an image's layers, and which of them a tag says."""

from __future__ import annotations

from typing import Literal, get_args

LayerFormat = Literal["gzip", "zstd"]
LAYER_FORMATS: tuple[LayerFormat, ...] = get_args(LayerFormat)

DEFAULT_FORMAT: LayerFormat = "gzip"
"""That of the layers in locks, and of each tag without a suffix: every engine reads it."""

NAMED_FORMATS = tuple(one for one in LAYER_FORMATS if one != DEFAULT_FORMAT)
"""Those that a tag names."""


def tag_suffix(layer_format: LayerFormat) -> str:
    """What stands behind each name of an image with such layers: ``-zstd``; nothing for the default."""
    return "" if layer_format == DEFAULT_FORMAT else f"-{layer_format}"


def split_format(tag: str) -> tuple[str, LayerFormat]:
    """*tag* without such a suffix, and what it says."""
    for layer_format in NAMED_FORMATS:
        if tag.endswith(suffix := tag_suffix(layer_format)):
            return tag.removesuffix(suffix), layer_format
    return tag, DEFAULT_FORMAT
