"""ImagePlan → BuiltImage, without a daemon: wheels become layers, layers an OCI layout.

What the store already holds is used as it is. For the rest, downloads run in threads and conversions in
processes, a wheel being converted while it arrives. A layer enters the store only when it is whole and its
wheels are the locked ones; the image's name is written last.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from torchkiln.build.cuda_layers import toolkit_layers
from torchkiln.build.dependencies import demand_agreement
from torchkiln.build.environment import Environment
from torchkiln.build.known import known_blob
from torchkiln.errors import BuildFailed
from torchkiln.model.image import BuiltImage
from torchkiln.model.layer import Blob, ImageLayer
from torchkiln.model.layer_format import DEFAULT_FORMAT, LayerFormat
from torchkiln.model.plan import (
    ImagePlan,
    ToolkitLayer,
)
from torchkiln.oci.compression import TARGETS
from torchkiln.oci.layout import write_image


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """An image, and how it came about: seconds by stage (stages overlap), layers not made anew."""

    image: BuiltImage
    seconds: tuple[tuple[str, float], ...]
    reused: tuple[str, ...]  # titles
    layer_format: LayerFormat = DEFAULT_FORMAT


def build(
    plan: ImagePlan,
    layout: Path,
    environment: Environment,
    *,
    refs: Sequence[str] = (),
    layer_format: LayerFormat = DEFAULT_FORMAT,
    stranger: bool = False,
) -> Build:
    """Build *plan* into *layout* under *refs* (the plan's tag when none); base and tools are in the store.

    :param layer_format: other than "gzip": layers are made as ever, compared with the lock, then
        brought into it.
    :param stranger: the lock is not the user's own: without a sandbox its base's Python does not run.
    :raises BuildFailed: a wheel is refused or cannot be had, asks for what the lock lacks, a layer is not the
        recorded one, no space.
    :raises ToolMissing: it is a stranger's, and this host can make no sandbox.
    """
    started, store, observer = time.monotonic(), environment.store, environment.observer
    target = TARGETS.get(layer_format)
    making = replace(environment, on_layer=lambda _: None) if target else environment
    layers, reused, seconds = _layers(plan, making, stranger=stranger)
    _compare_with_lock(layers, plan)
    demand_agreement(plan.locked, store)
    with ExitStack() as claims:
        if target:
            from torchkiln.build.layer_formats import convert, records_of  # only here: slow to load

            began = time.monotonic()
            what = f"wants the layers of {plan.tag} compressed"
            claims.enter_context(store.claim(what, records_of(layers, target)))
            layers = convert(target, layers, store, observer)
            for layer in layers:
                environment.on_layer(layer.blob)
            seconds["compress"] = time.monotonic() - began
        writing = time.monotonic()
        observer.begin("write", "layout", len(layers))
        image = write_image(layout, plan, layers, store.blob, refs=refs, layer_format=layer_format)
        observer.end("write", "layout")
    now = time.monotonic()
    return Build(
        image=image,
        seconds=(*sorted(seconds.items()), ("write", now - writing), ("total", now - started)),
        reused=tuple(spec.title for spec in plan.layers if spec.title in reused),
        layer_format=layer_format,
    )


def _layers(
    plan: ImagePlan, environment: Environment, *, stranger: bool
) -> tuple[tuple[ImageLayer, ...], list[str], dict[str, float]]:
    """All layers of *plan*, their blobs in the store; titles of those not made anew; seconds by stage."""
    store = environment.store
    built = {spec: known for spec in plan.layers if (known := known_blob(spec, plan, store))}
    reused = [spec.title for spec in built]
    for blob in built.values():
        environment.on_layer(blob)
    seconds: dict[str, float] = {}
    if of_toolkit := [spec for spec in plan.of(ToolkitLayer) if spec not in built]:
        began = time.monotonic()
        built |= toolkit_layers(
            of_toolkit, store, environment.archives, environment.observer, environment.on_layer
        )
        seconds["toolkit"] = time.monotonic() - began
    missing = [spec for spec in plan.made if spec not in built]
    if of_wheels := [spec for spec in missing if not isinstance(spec, ToolkitLayer)]:
        from torchkiln.build.wheel_layers import make_wheel_layers  # only here: slow to load

        made, of_scheduler, waited = make_wheel_layers(of_wheels, plan, environment, stranger=stranger)
        built |= made
        seconds |= of_scheduler
        reused += waited
    layers = tuple(ImageLayer(title=spec.title, blob=built[spec]) for spec in plan.layers)
    return layers, reused, seconds


def _told(blob: Blob) -> str:
    """*blob*'s digest, and what its tar is."""
    return f"{blob.digest} (diff_id {blob.diff_id}, {blob.unpacked} bytes unpacked)"


def _compare_with_lock(layers: Sequence[ImageLayer], plan: ImagePlan) -> None:
    """Where the lock has recorded layers, these must be they: the same lock gives the same image."""
    recorded = {layer.title: layer.blob for layer in plan.locked.layers}
    faults = [
        f"layer {layer.title!r} is {_told(layer.blob)}, the lock has {_told(recorded[layer.title])}"
        for layer in layers
        if layer.title in recorded and recorded[layer.title] != layer.blob
    ]
    if faults:
        raise BuildFailed(
            "\n".join(faults),
            hint="the recipe changed without a new number, or the cache is damaged: try an empty one",
        )
