"""Prints shared layers as tables, and formats them as JSON, for `plan sharing`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import click

from torchkiln.cli.shared.console import size
from torchkiln.cli.shared.tables import table
from torchkiln.compare.sharing import Sharing, Storage, StoredLayer, chain_ids
from torchkiln.errors import printable
from torchkiln.model.digest import Digest

_MORE = " + ?"  # after a total that lacks unknown sizes


def show(found: Sharing) -> None:
    """Print all tables. The table of layers refers to the images by number."""
    _images("REGISTRY", found, found.registry)
    click.echo()
    _images("DISK", found, found.disk)
    if found.shared:
        click.echo()
        header = ["COMPRESSED", "KEPT FOR", "UNPACKED", "KEPT ON A DISK FOR", "LAYER"]
        rows = [_layer(found, diff_id) for diff_id in found.shared]
        table(header, rows, text=(1, 3, 4))
    click.echo()
    places = (("registry, compressed", found.registry), ("host's disk, unpacked", found.disk))
    table(["ALL", "IMAGES", "KEPT", "RATIO"], [_sums(name, place) for name, place in places], text=(3,))


def ratio(place: Storage) -> str:
    """The ratio with three digits, or "unknown"."""
    if place.ratio is None:
        return "unknown"
    return f"{place.ratio:.3f}" + (" of the known sizes" if place.unknown else "")


def _images(title: str, found: Sharing, place: Storage) -> None:
    rows = []
    for image, (stack, kept) in enumerate(zip(found.stacks, place.images, strict=True)):
        unknown = kept.count(None)
        rows.append(
            [
                str(image + 1),
                printable(stack.tag),
                f"{len(kept)}, {unknown} unknown" if unknown else str(len(kept)),
                size(place.bytes_of(image)) + (_MORE if unknown else ""),
                size(place.shared_of(image)),
                ", ".join(f"{size(part.bytes)} with {part.others}" for part in place.parts_of(image)) or "-",
            ]
        )
    table(["NO", "IMAGE", "LAYERS", title, "SHARED", "WITH OTHER IMAGES"], rows, text=(5,))


def _layer(found: Sharing, diff_id: Digest) -> list[str]:
    """A row for a layer that several images have: its sizes, and which images share each copy."""
    blobs, unpacked = (
        [copy for copy in place.stored if copy.diff_id == diff_id] for place in (found.registry, found.disk)
    )
    title = " ".join(printable(blobs[0].title).split())
    return [
        size(sum(copy.bytes for copy in blobs)),
        _groups(blobs),
        size(sum(copy.bytes for copy in unpacked)) if unpacked else "unknown",
        _groups(unpacked) or "-",
        title,
    ]


def _groups(copies: Iterable[StoredLayer]) -> str:
    """`1,2,4-9 | 3`: image 3 has a copy of its own, the others share one."""
    return " | ".join(_ranges([image + 1 for image in copy.images]) for copy in copies)


def _ranges(numbers: Iterable[int]) -> str:
    """The ascending *numbers* as text; three or more consecutive numbers are a range: "1,2,4-9"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)


def _sums(name: str, place: Storage) -> list[str]:
    more = _MORE if place.unknown else ""
    return [name, size(place.total) + more, size(place.unique) + more, ratio(place)]


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
