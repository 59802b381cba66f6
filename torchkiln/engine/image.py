"""Builds an image from its plan, without a daemon.

Layers in the store are reused. For the others, downloads run in threads and conversions in processes; a wheel
is converted while it is downloaded. A layer is added to the store only when it is complete and its wheels are
the locked ones; the image's name is written last.

A layer in another compression is recorded in the store by the original layer, so that it is made once;
several are made in parallel, because libzstd and the hashes run without the GIL.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from torchkiln.engine.cache_keys import blob_of, format_key
from torchkiln.engine.cuda_layers import toolkit_layers
from torchkiln.engine.dependencies import check_metadata
from torchkiln.engine.environment import Environment
from torchkiln.engine.known import known_blob
from torchkiln.errors import BuildFailed
from torchkiln.locks.file import to_json
from torchkiln.model.digest import Digest
from torchkiln.model.layer import DEFAULT_FORMAT, Blob, BuiltImage, ImageLayer, LayerFormat
from torchkiln.model.plan import ImagePlan, ToolkitLayer
from torchkiln.model.progress import Observer
from torchkiln.oci.compression import GZIP, TARGETS, TargetCompression
from torchkiln.oci.layer import NotCompressible
from torchkiln.oci.layout import write_image
from torchkiln.store.store import Store
from torchkiln.wheel.source import Cancelled


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildResult:
    """An image, the seconds of each stage (stages overlap), and the reused layers."""

    image: BuiltImage
    plan: ImagePlan  # on the base that was used
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
    foreign: bool = False,
) -> BuildResult:
    """Build *plan* into *layout* under *refs* (default: the plan's tag); base and tools are in the store.

    :param layer_format: layers are made as gzip, compared with the lock, and then converted to this format.
    :param foreign: the lock is not the user's own: the base's Python only runs in a sandbox.
    :raises BuildFailed: a wheel is invalid, cannot be downloaded or requires a package that is not locked; a
        layer differs from the recorded one; or the disk is full.
    :raises ToolMissing: the lock is foreign and this host has no sandbox.
    """
    started, store, observer = time.monotonic(), environment.store, environment.observer
    target = TARGETS.get(layer_format)
    # Converted layers are reported instead.
    quiet = replace(environment, on_layer=lambda _: None) if target else environment
    layers, reused, seconds = make_layers(plan, quiet, foreign=foreign)
    compare_with_lock(layers, plan)
    check_metadata(plan.locked, store, plan.requested)
    with ExitStack() as claims:
        if target:
            began = time.monotonic()
            what = f"compresses the layers of {plan.tag}"
            claims.enter_context(store.claim(what, records_of(layers, target)))
            layers = convert(target, layers, store, observer)
            for layer in layers:
                environment.on_layer(layer.blob)
            seconds["compress"] = time.monotonic() - began
        writing = time.monotonic()
        observer.begin("write", "layout", len(layers))
        lock = to_json(plan.locked)
        image = write_image(layout, plan, layers, store.blob, refs=refs, layer_format=layer_format, lock=lock)
        observer.end("write", "layout")
    now = time.monotonic()
    return BuildResult(
        image=image,
        plan=plan,
        seconds=(*sorted(seconds.items()), ("write", now - writing), ("total", now - started)),
        reused=tuple(spec.title for spec in plan.layers if spec.title in reused),
        layer_format=layer_format,
    )


def make_layers(
    plan: ImagePlan, environment: Environment, *, foreign: bool
) -> tuple[tuple[ImageLayer, ...], list[str], dict[str, float]]:
    """All layers of *plan*, with their blobs in the store; the titles of reused ones; seconds by stage."""
    store = environment.store
    built = {spec: known for spec in plan.layers if (known := known_blob(spec, plan, store))}
    reused = [spec.title for spec in built]
    for blob in built.values():
        environment.on_layer(blob)
    seconds: dict[str, float] = {}
    if toolkit := [spec for spec in plan.of(ToolkitLayer) if spec not in built]:
        began = time.monotonic()
        built |= toolkit_layers(
            toolkit, store, environment.archives, environment.observer, environment.on_layer
        )
        seconds["toolkit"] = time.monotonic() - began
    missing = [spec for spec in plan.made if spec not in built]
    if wheels := [spec for spec in missing if not isinstance(spec, ToolkitLayer)]:
        from torchkiln.engine.wheel_layers import make_wheel_layers  # imported here because it loads slowly

        made, spans, waited = make_wheel_layers(wheels, plan, environment, foreign=foreign)
        built |= made
        seconds |= spans
        reused += waited
    layers = tuple(ImageLayer(title=spec.title, blob=built[spec]) for spec in plan.layers)
    return layers, reused, seconds


def _described(blob: Blob) -> str:
    return f"{blob.digest} (diff_id {blob.diff_id}, {blob.unpacked} bytes unpacked)"


def compare_with_lock(layers: Sequence[ImageLayer], plan: ImagePlan) -> None:
    """Compare the layers with those that the lock records: the same lock gives the same image."""
    recorded = {layer.title: layer.blob for layer in plan.locked.layers}
    faults = [
        f"layer {layer.title!r}: expected {_described(recorded[layer.title])}, got {_described(layer.blob)}"
        for layer in layers
        if layer.title in recorded and recorded[layer.title] != layer.blob
    ]
    if faults:
        raise BuildFailed(
            "\n".join(faults),
            hint="the cache is damaged, or RECIPE was not raised after a change of torchkiln: set"
            " TORCHKILN_CACHE to an empty folder, and build again",
        )


def convert(
    target: TargetCompression, layers: Sequence[ImageLayer], store: Store, observer: Observer
) -> tuple[ImageLayer, ...]:
    """*layers*, whose blobs are in *store*, converted to *target*: other digests, the same diff_ids.

    :raises BuildFailed: a blob is damaged, or the cache cannot be written.
    :raises ToolMissing: another version of the encoder is installed.
    """
    from torchkiln.engine.worker import cores  # imported here because it loads slowly

    cancelled = threading.Event()
    largest_first = sorted(set(layers), key=lambda layer: (-layer.blob.size, layer.blob.digest))
    with ThreadPoolExecutor(min(cores(), target.max_parallel), "compress") as pool:
        try:
            running = {
                layer: pool.submit(_converted, target, layer, store, observer, cancelled)
                for layer in largest_first
            }
            for future in as_completed(running.values()):
                if future.exception():
                    cancelled.set()
        finally:
            cancelled.set()  # ends running conversions after an interrupt: the pool waits for them
    if failed := [error for future in running.values() if (error := future.exception())]:
        # A cancelled conversion is not the cause of the failure.
        raise next((error for error in failed if not isinstance(error, Cancelled)), failed[0])
    return tuple(running[layer].result() for layer in layers)


def records_of(layers: Sequence[ImageLayer], target: TargetCompression) -> frozenset[str]:
    """The records that `convert` may write for *layers*; a `Store.claim` on a record covers its blob, too."""
    return frozenset(
        f"records/{target.name}/{format_key(layer.blob.digest, target.encoder)}.json" for layer in layers
    )


def _converted(
    target: TargetCompression, layer: ImageLayer, store: Store, observer: Observer, cancelled: threading.Event
) -> ImageLayer:
    """*layer* from the store, or converted now; locked against other processes."""

    def check() -> None:
        if cancelled.is_set():
            raise Cancelled

    check()
    key = format_key(layer.blob.digest, target.encoder)
    with store.lock(f"{target.name}-{key}", f"compresses layer {layer.title}", check=check):
        record = store.record(target.name, key)
        if record is not None and store.has_blob(Digest(record["digest"]), record["size"]):
            return replace(layer, blob=blob_of(record))
        written = _make(target, layer, store, observer, check)
        store.put_record(target.name, key, asdict(written))
        return replace(layer, blob=written)


def _make(
    target: TargetCompression, layer: ImageLayer, store: Store, observer: Observer, check: Callable[[], None]
) -> Blob:
    source, out = store.blob(layer.blob.digest), store.temporary(target.name)

    def advanced(count: int) -> None:
        check()
        observer.advance("compress", layer.title, count)

    observer.begin("compress", layer.title, layer.blob.unpacked)
    try:
        with GZIP.open(source) as tar, out.open("wb") as file:
            written = target.compress(tar, file, unpacked=layer.blob.unpacked, advanced=advanced)
        if (written.diff_id, written.unpacked) != (layer.blob.diff_id, layer.blob.unpacked):
            raise NotCompressible("diff_id mismatch")
        store.adopt(out, store.blob(written.digest))
    except NotCompressible as error:
        raise BuildFailed(
            f"layer {layer.title!r}: {source}: {error}",
            hint="the cache is damaged: delete that file and build again",
        ) from error
    except OSError as error:
        raise BuildFailed(
            f"layer {layer.title!r} cannot be compressed: {error.strerror or error}",
            hint="free disk space: the cache keeps both layers",
        ) from error
    finally:
        out.unlink(missing_ok=True)
    observer.end("compress", layer.title)
    return written
