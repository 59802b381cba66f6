"""Reads labels and settings from the config of an image in a layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchkiln.oci.layout import ImageOnDisk


def labels(image: ImageOnDisk) -> Mapping[str, str]:
    return container_config(image).get("Labels") or {}


def container_config(image: ImageOnDisk) -> Mapping[str, Any]:
    return image.config.get("config") or {}


def tag_in(image: ImageOnDisk) -> str:
    """The tag in the labels of *image*; empty if there is none."""
    return labels(image).get("org.opencontainers.image.version", "")
