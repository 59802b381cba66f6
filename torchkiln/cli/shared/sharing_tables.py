"""Sharing -> tables on stdout: images by what they share, the layers that several have, and the sums."""

from __future__ import annotations

from collections.abc import Iterable

import click

from torchkiln.cli.shared.console import size
from torchkiln.cli.shared.tables import table
from torchkiln.compare.sharing import Sharing, Storage, StoredLayer
from torchkiln.errors import printable
from torchkiln.model.digest import Digest

_LONG = 60  # characters of a layer's title; --json has all
_MORE = " + ?"  # behind a sum that lacks what is not known


def show(found: Sharing) -> None:
    """All of them. Images are numbered; the table of layers calls them by their numbers."""
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
    """Three digits, or that it is not known."""
    if place.ratio is None:
        return "not known"
    return f"{place.ratio:.3f}" + (" of what is known" if place.unknown else "")


def _images(title: str, found: Sharing, place: Storage) -> None:
    rows = []
    for image, (stack, kept) in enumerate(zip(found.stacks, place.images, strict=True)):
        unknown = kept.count(None)
        rows.append(
            [
                str(image + 1),
                printable(stack.tag),
                f"{len(kept)}, {unknown} not known" if unknown else str(len(kept)),
                size(place.bytes_of(image)) + (_MORE if unknown else ""),
                size(place.shared_of(image)),
                ", ".join(f"{size(part.bytes)} with {part.others}" for part in place.parts_of(image)) or "-",
            ]
        )
    table(["NO", "IMAGE", "LAYERS", title, "SHARED", "WITH HOW MANY OTHERS"], rows)


def _layer(found: Sharing, diff_id: Digest) -> list[str]:
    """A layer that several images have, with the images for which one copy of it is kept."""
    blobs, unpacked = (
        [one for one in place.stored if one.diff_id == diff_id] for place in (found.registry, found.disk)
    )
    title = " ".join(printable(blobs[0].title).split())
    return [
        size(sum(one.bytes for one in blobs)),
        _groups(blobs),
        size(sum(one.bytes for one in unpacked)) if unpacked else "not known",
        _groups(unpacked) or "-",
        title if len(title) <= _LONG else title[: _LONG - 1].rstrip(", ") + "…",
    ]


def _groups(kept: Iterable[StoredLayer]) -> str:
    """`1,2 | 3`: a copy for the images 1 and 2, and one for 3."""
    return " | ".join(",".join(str(image + 1) for image in one.images) for one in kept)


def _sums(name: str, place: Storage) -> list[str]:
    more = _MORE if place.unknown else ""
    return [name, size(place.total) + more, size(place.unique) + more, ratio(place)]
