"""Finds the layers of a plan that are cached, and what a build has to make and to download.

`record_layers` records them in the lock: later builds must make the same layers, so the digest of the image
can be predicted.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torchkiln.engine.cache_keys import cached_record, record_of
from torchkiln.engine.cuda_layers import kept_path
from torchkiln.locks.lock import load_locked, save
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob, ImageLayer
from torchkiln.model.lock import LockedArchive, LockedCell, LockedWheel
from torchkiln.model.plan import (
    ArtefactLayer,
    ImagePlan,
    OverlayLayer,
    PlannedLayer,
    RemovalLayer,
    ToolkitLayer,
    WheelLayer,
)
from torchkiln.oci import tar
from torchkiln.oci.encode import encode_bytes
from torchkiln.oci.image import describe
from torchkiln.plan.layers import made_layers
from torchkiln.store.store import Store


def known_blob(spec: PlannedLayer, plan: ImagePlan, store: Store) -> Blob | None:
    """The blob of *spec* if it need not be made: base, tools, overlay, removal, or a cached layer."""
    match spec:
        case ArtefactLayer():
            return spec.blob
        case OverlayLayer() | RemovalLayer():
            return _overlay(spec, plan.epoch, store)
    record = cached_record(spec, store)
    if record is None:
        return None
    # A layer whose wheels were not checked counts only if this lock records the same blob.
    trusted = record.verified or ImageLayer(title=spec.title, blob=record.blob) in plan.locked.layers
    return record.blob if trusted else None


def _overlay(spec: OverlayLayer | RemovalLayer, epoch: int, store: Store) -> Blob:
    """The blob of *spec*: a few small files, encoded each time because a search in the cache is slower."""
    data, blob = encoded(spec, epoch)
    if not store.has_blob(blob.digest, blob.size):
        temporary = store.temporary("overlay")
        temporary.write_bytes(data)
        store.adopt(temporary, store.blob(blob.digest))
    return blob


def forecast(plan: ImagePlan, store: Store) -> dict[str, Any]:
    """What `build` would do for each layer (reuse, convert, make), and what it would download."""
    layers: list[dict[str, Any]] = []
    missing: list[LockedWheel | LockedArchive] = []
    for spec in plan.layers:
        do = "make"
        match spec:
            case ArtefactLayer():
                cached = store.has_blob(spec.artefact.digest, spec.artefact.size)
            case OverlayLayer() | RemovalLayer():
                cached = False
            case WheelLayer() | ToolkitLayer():
                cached = known_blob(spec, plan, store) is not None
                if not cached:
                    missing += [source for source in spec.inputs if not _is_cached(source, store)]
                do = "convert"
        layers.append({"what": spec.title, "do": "reuse" if cached else do, "bytes": spec.size})
    unmeasured = sum(not source.size for source in missing)
    return {
        "layers": layers,
        "downloads": len(missing),
        "download_bytes": sum(source.size for source in missing),
        **({"of_unknown_size": unmeasured} if unmeasured else {}),
    }


def _is_cached(source: LockedWheel | LockedArchive, store: Store) -> bool:
    if isinstance(source, LockedArchive):
        return (store.root / kept_path(source)).is_file()
    return store.has_wheel(source)


def known_layers(locked: LockedCell, store: Store) -> tuple[ImageLayer, ...] | None:
    """The layers of wheels and archives of this lock in *store*, in order; None if one is missing.

    Only layers whose wheels were verified count: a lock must not confirm itself. If the lock records some
    layers already, as that of a thin cell records layers of the full cell, these are taken from the lock.
    """
    found = []
    specs, recorded = made_layers(locked), {layer.title: layer for layer in locked.layers}
    partly = any(spec.title not in recorded for spec in specs)
    for spec in specs:
        if partly and spec.title in recorded:
            found.append(recorded[spec.title])
            continue
        record = record_of(spec, store)
        if record is None or not record.verified:
            return None
        found.append(ImageLayer(title=spec.title, blob=record.blob))
    return tuple(found)


def record_layers(images: Path, tag: str, store: Store) -> Literal["recorded", "already", "not built"]:
    """Write the digests of the layers in *store* to the lock of *tag*; return the outcome.

    :raises Stale: there is no valid lock.
    """
    locked = load_locked(images, tag)
    layers = known_layers(locked, store)
    if layers is None:
        recorded = {layer.title for layer in locked.layers}
        return "already" if all(spec.title in recorded for spec in made_layers(locked)) else "not built"
    save(images, replace(locked, layers=layers))
    return "recorded"


def predicted_digest(plan: ImagePlan) -> Digest | None:
    """The manifest's digest; None if a layer is not recorded."""
    known = [
        ImageLayer(title=layer.title, blob=blob)
        for layer, blob in zip(plan.layers, predicted_blobs(plan), strict=True)
        if blob
    ]
    return describe(plan, known).manifest_digest if len(known) == len(plan.layers) else None


def predicted_blobs(plan: ImagePlan) -> list[Blob | None]:
    """The blob of each layer, lowest first; None if it is not recorded."""
    return [predicted_blob(layer, plan) for layer in plan.layers]


def predicted_blob(layer: PlannedLayer, plan: ImagePlan) -> Blob | None:
    """The recorded blob, None if there is none; overlays and removals are small, and are encoded here."""
    match layer:
        case ArtefactLayer():
            return layer.blob
        case OverlayLayer() | RemovalLayer():
            return encoded(layer, plan.epoch)[1]
    return next((each.blob for each in plan.locked.layers if each.title == layer.title), None)


def encoded(layer: OverlayLayer | RemovalLayer, epoch: int) -> tuple[bytes, Blob]:
    """The blob of *layer* and its description."""
    links = layer.links if isinstance(layer, OverlayLayer) else ()
    return encode_bytes(tar.archive((*layer.files, *links), mtime=epoch))
