"""Formats shared layers as JSON, for `plan sharing --json`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torchkiln.compare.sharing import Sharing, Storage, chain_ids


def to_json(found: Sharing) -> dict[str, Any]:
    """The object that `plan sharing --json` prints: sizes in bytes, null if unknown. Keys are only added."""
    return {
        "images": [_image_json(found, image) for image in range(len(found.stacks))],
        "registry": _place_json(found, found.registry, "digest"),
        "disk": _place_json(found, found.disk, "chain_id"),
    }


def _image_json(found: Sharing, image: int) -> dict[str, Any]:
    stack = found.stacks[image]
    levels = zip(stack.levels, chain_ids(stack), strict=True)
    return {
        "tag": stack.tag,
        "layers": [
            {
                "title": level.title,
                "digest": level.blob and level.blob.digest,
                "diff_id": level.blob and level.blob.diff_id,
                "chain_id": chain_id,
                "compressed_bytes": level.blob and level.blob.size,
                "unpacked_bytes": level.blob and level.blob.unpacked,
            }
            for level, chain_id in levels
        ],
        **{
            name: {
                "bytes": None if None in place.images[image] else place.bytes_of(image),
                "shared_bytes": place.shared_of(image),
                "unknown_layers": place.images[image].count(None),
                "shared_with": [asdict(part) for part in place.parts_of(image)],
            }
            for name, place in (("registry", found.registry), ("disk", found.disk))
        },
    }


def _place_json(found: Sharing, place: Storage, key: str) -> dict[str, Any]:
    return {
        "image_bytes": None if place.unknown else place.total,
        "kept_bytes": None if place.unknown else place.unique,
        "ratio": None if place.unknown else place.ratio,
        "known": {"image_bytes": place.total, "kept_bytes": place.unique, "ratio": place.ratio},
        "unknown_layers": place.unknown,
        "kept": [
            {
                key: copy.key,
                "diff_id": copy.diff_id,
                "title": copy.title,
                "bytes": copy.bytes,
                "images": [found.stacks[image].tag for image in copy.images],
            }
            for copy in place.stored
        ],
    }
