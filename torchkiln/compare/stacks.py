"""Committed locks, or a layout's images -> Stacks: images by their layers, for `share`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from torchkiln.build.cache_keys import key_of
from torchkiln.build.predicted_digest import predicted_blobs
from torchkiln.compare.docker_save import titles_of
from torchkiln.compare.images import unpacked_of
from torchkiln.compare.sharing import Level, Stack
from torchkiln.errors import VerificationFailed
from torchkiln.matrix.tags import parse_name
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob
from torchkiln.model.layer_format import split_format
from torchkiln.model.plan import ImagePlan, MadeLayer
from torchkiln.oci.layout import ImageOnDisk, LayerOnDisk, Layout

_TITLE = 200  # characters of a title that are shown


def stacks_of(plans: Sequence[ImagePlan]) -> tuple[Stack, ...]:
    """What builds of *plans* give, as far as their locks have recorded that.

    What one lock records holds for all that have the same layer: devel's image has runtime's.
    """
    told = [(plan, list(zip(plan.layers, predicted_blobs(plan), strict=True))) for plan in plans]
    known = {
        key_of(spec): blob
        for _, layers in told
        for spec, blob in layers
        if blob and isinstance(spec, MadeLayer)
    }
    return tuple(
        Stack(
            tag=plan.tag,
            levels=tuple(
                Level(
                    title=spec.title,
                    blob=known.get(key_of(spec)) if not blob and isinstance(spec, MadeLayer) else blob,
                )
                for spec, blob in layers
            ),
        )
        for plan, layers in told
    )


def names_in(layout: Layout, tags: Collection[str] | None = None) -> tuple[str, ...]:
    """A name for each image of *layout*, its own tag where it has that; with *tags*, of these images alone.

    :raises VerificationFailed: index.json cannot be read.
    """
    names: dict[Digest, list[str]] = {Digest(entry["digest"]): [] for entry in layout.entries()}
    for name, digest in layout.refs().items():
        names[digest].append(name)
    return tuple(
        _own(found) or digest
        for digest, found in names.items()
        if tags is None or any(split_format(name)[0] in tags for name in found)
    )


def stacks_in(
    layout: Layout, names: Iterable[str], begin: Callable[[int, int], None] = lambda _count, _size: None
) -> tuple[Stack, ...]:
    """The images *names* of *layout* as they lie there. Each layer is read once, to know its unpacked size.

    :param begin: is told how many layers will be read, and their bytes.
    :raises ConfigError: an image is not there.
    :raises VerificationFailed: an image is damaged.
    """
    images = [(name, *_shown(layout.image(name))) for name in names]
    layers = {(layer.digest, layer.diff_id): layer for _, of_image, _ in images for layer in of_image}
    for layer in layers.values():
        _demand_size(layer)
    begin(len(layers), sum(layer.size for layer in layers.values()))
    unpacked = {key: unpacked_of(layer) for key, layer in layers.items()}
    return tuple(
        Stack(
            tag=name,
            levels=tuple(_levels(of_image, titles, [unpacked[one.digest, one.diff_id] for one in of_image])),
        )
        for name, of_image, titles in images
    )


def _shown(image: ImageOnDisk) -> tuple[tuple[LayerOnDisk, ...], list[str]]:
    """Its layers and their titles. The rest is not kept: a layout may have many, each with a long config."""
    return image.layers, [title[:_TITLE] for title in titles_of(image.config, len(image.layers))]


def _levels(layers: Sequence[LayerOnDisk], titles: Sequence[str], unpacked: Sequence[int]) -> Iterable[Level]:
    for layer, title, count in zip(layers, titles, unpacked, strict=True):
        yield Level(
            title=title or layer.diff_id[:19],
            blob=Blob(digest=layer.digest, diff_id=layer.diff_id, size=layer.size, unpacked=count),
        )


def _demand_size(layer: LayerOnDisk) -> None:
    """The manifest's word is not taken for what a layer weighs."""
    there = layer.path.stat().st_size if layer.path.exists() else None
    if there != layer.size:
        told = "is not there" if there is None else f"has {there} bytes"
        raise VerificationFailed(
            f"{layer.path}: {told}; its manifest says {layer.size}",
            hint="`verify` tells all that is wrong with the layout",
        )


def _own(names: Sequence[str]) -> str | None:
    """Of an image's *names* the one that says most for its length; None: it has no name."""
    fitting = [name for name in names if parse_name(split_format(name)[0])]
    return min(fitting or names, key=len, default=None)
