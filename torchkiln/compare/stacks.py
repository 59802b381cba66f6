"""Lists the layers of images, from committed locks or from an OCI layout, for `sharing.share`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from torchkiln.build.cache_keys import key_of
from torchkiln.build.predicted_digest import predicted_blobs
from torchkiln.compare.docker_save import titles_of
from torchkiln.compare.images import LAYOUT_HINT, begin_reading, unpacked_of
from torchkiln.compare.sharing import Level, Stack
from torchkiln.errors import VerificationFailed
from torchkiln.matrix.tags import preferred_name
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob
from torchkiln.model.layer_format import split_format
from torchkiln.model.plan import ImagePlan, MadeLayer
from torchkiln.model.progress import Observer, Silent
from torchkiln.oci.layout import ImageOnDisk, LayerOnDisk, Layout

_MAX_TITLE = 200  # characters


def stacks_of(plans: Sequence[ImagePlan]) -> tuple[Stack, ...]:
    """The layers that builds of *plans* produce, as far as their locks record them.

    A layer that one lock records is known for all plans with the same layer: devel has the layers of runtime.
    """
    predicted = [(plan, list(zip(plan.layers, predicted_blobs(plan), strict=True))) for plan in plans]
    known = {
        key_of(spec): blob
        for _, layers in predicted
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
        for plan, layers in predicted
    )


def names_in(layout: Layout, tags: Collection[str] | None = None) -> tuple[str, ...]:
    """A name for each image of *layout*, its tag if it has one; with *tags*, only for these images.

    :raises VerificationFailed: index.json cannot be read.
    """
    names: dict[Digest, list[str]] = {Digest(entry["digest"]): [] for entry in layout.entries()}
    for name, digest in layout.refs().items():
        names[digest].append(name)
    return tuple(
        preferred_name(found) or digest
        for digest, found in names.items()
        if tags is None or any(split_format(name)[0] in tags for name in found)
    )


def stacks_in(
    layout: Layout,
    names: Iterable[str],
    observer: Observer | None = None,
    *,
    begin: Callable[[int, int], None] = lambda _count, _size: None,
) -> tuple[Stack, ...]:
    """The images *names* of *layout*. Each layer is read once, to get its unpacked size.

    :param begin: called with the number of layers that will be read, and their bytes.
    :raises ConfigError: there is no such image.
    :raises VerificationFailed: an image is damaged.
    """
    images = [(name, *_layers_and_titles(layout.image(name))) for name in names]
    layers = {(layer.digest, layer.diff_id): layer for _, of_image, _ in images for layer in of_image}
    for layer in layers.values():
        _check_size(layer)
    begin(len(layers), sum(layer.size for layer in layers.values()))
    begin_reading(layers.values(), observer or Silent())
    unpacked = {key: unpacked_of(layer, observer) for key, layer in layers.items()}
    return tuple(
        Stack(
            tag=name,
            levels=tuple(
                _level(layer, title, unpacked[layer.digest, layer.diff_id])
                for layer, title in zip(of_image, titles, strict=True)
            ),
        )
        for name, of_image, titles in images
    )


def _layers_and_titles(image: ImageOnDisk) -> tuple[tuple[LayerOnDisk, ...], list[str]]:
    """The layers and their titles. The configs are not kept: a layout can have many images with long ones."""
    return image.layers, [title[:_MAX_TITLE] for title in titles_of(image.config, len(image.layers))]


def _level(layer: LayerOnDisk, title: str, unpacked: int) -> Level:
    return Level(
        title=title or layer.diff_id[:19],
        blob=Blob(digest=layer.digest, diff_id=layer.diff_id, size=layer.size, unpacked=unpacked),
    )


def _check_size(layer: LayerOnDisk) -> None:
    """Compare the size in the manifest with the file."""
    if not layer.path.exists():
        raise VerificationFailed(f"{layer.path}: no such file", hint=LAYOUT_HINT)
    if (size := layer.path.stat().st_size) != layer.size:
        raise VerificationFailed(
            f"{layer.path}: size mismatch: {size} bytes, {layer.size} in the manifest", hint=LAYOUT_HINT
        )
