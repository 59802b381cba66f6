"""Defines the compressions of an image's layers and their tag suffixes."""

from __future__ import annotations

from typing import Literal, get_args

LayerFormat = Literal["gzip", "zstd"]
LAYER_FORMATS: tuple[LayerFormat, ...] = get_args(LayerFormat)

DEFAULT_FORMAT: LayerFormat = "gzip"
"""The format of layers in locks and of tags without a suffix: every engine reads it."""

NAMED_FORMATS = tuple(name for name in LAYER_FORMATS if name != DEFAULT_FORMAT)
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
