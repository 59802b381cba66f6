"""Prints shared layers as tables: the images, the layers that several images have, and the totals."""

from __future__ import annotations

from collections.abc import Iterable

import click

from torchkiln.cli.shared.console import size
from torchkiln.cli.shared.tables import table
from torchkiln.compare.sharing import Sharing, Storage, StoredLayer
from torchkiln.errors import printable
from torchkiln.model.digest import Digest

_LONG = 60  # characters of a layer's title; --json has all
_MORE = " + ?"  # after a total that lacks unknown sizes


def show(found: Sharing) -> None:
    """Print all tables. The table of layers refers to the images by number."""
    _images("REGISTRY", found, found.registry)
    click.echo()
    _images("DISK", found, found.disk)
    if found.shared:
        click.echo()
        header = ["COMPRESSED", "KEPT FOR", "UNPACKED", "KEPT ON A DISK FOR", "LAYER"]
        table(header, [_layer(found, diff_id) for diff_id in found.shared])
    click.echo()
    places = (("registry, compressed", found.registry), ("host's disk, unpacked", found.disk))
    table(["ALL", "IMAGES", "KEPT", "RATIO"], [_sums(name, place) for name, place in places])


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
    table(["NO", "IMAGE", "LAYERS", title, "SHARED", "WITH OTHER IMAGES"], rows)


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
        title if len(title) <= _LONG else title[: _LONG - 1].rstrip(", ") + "…",
    ]


def _groups(copies: Iterable[StoredLayer]) -> str:
    """`1,2 | 3`: the images 1 and 2 share a copy, 3 has its own."""
    return " | ".join(",".join(str(image + 1) for image in copy.images) for copy in copies)


def _sums(name: str, place: Storage) -> list[str]:
    more = _MORE if place.unknown else ""
    return [name, size(place.total) + more, size(place.unique) + more, ratio(place)]
