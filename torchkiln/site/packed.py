"""Packs the packages and layers of all images into one table, for the search and the comparison."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, TypeVar

from torchkiln.site.catalogue import ListedImage

T = TypeVar("T", bound=Hashable)


def packed(images: Sequence[ListedImage]) -> dict[str, Any]:
    """Each package and each layer once; an image has their positions.

    A package is [system, name, version, sha256], a layer [title, key, bytes]. A layer's key is the
    digest of its blob, so it is the same in all images that share the layer; the key is empty if no build
    recorded the layer.
    """
    packages = {image.tag: _packages(image) for image in images}
    layers = {image.tag: _layers(image) for image in images}
    package_at, layer_at = _positions(packages.values()), _positions(layers.values())
    return {
        "packages": list(package_at),
        "layers": list(layer_at),
        "images": [
            {
                "tag": image.tag,
                "packages": [package_at[package] for package in packages[image.tag]],
                "layers": [layer_at[layer] for layer in layers[image.tag]],
            }
            for image in images
        ],
    }


def _packages(image: ListedImage) -> list[tuple[str, str, str, str]]:
    return [(package.system, package.name, package.version, package.sha256) for package in image.packages]


def _layers(image: ListedImage) -> list[tuple[str, str, int | None]]:
    return [
        (layer.title, layer.blob.digest, layer.blob.size) if layer.blob else (layer.title, "", None)
        for layer in image.layers
    ]


def _positions(lists: Iterable[Iterable[T]]) -> dict[T, int]:
    values = dict.fromkeys(value for each in lists for value in each)
    return {value: position for position, value in enumerate(values)}
