"""What of a plan the cache has already, and what a build would have to make and to fetch."""

from __future__ import annotations

from typing import Any

from torchkiln.build.cuda_layers import kept_path
from torchkiln.build.predicted_digest import encoded
from torchkiln.build.records import record_of, there
from torchkiln.model.layer import Blob, ImageLayer
from torchkiln.model.lock import LockedArchive, LockedCell, LockedWheel
from torchkiln.model.plan import (
    ArtefactLayer,
    ImagePlan,
    OverlayLayer,
    PlannedLayer,
    ProgramLayer,
    ToolkitLayer,
    WheelLayer,
)
from torchkiln.plan.layers import made_layers
from torchkiln.store.store import Store


def known_blob(spec: PlannedLayer, plan: ImagePlan, store: Store) -> Blob | None:
    """The blob of *spec* if it needs no work: base, tools, overlay, or another that was made before."""
    match spec:
        case ArtefactLayer():
            return spec.blob
        case OverlayLayer():
            return _overlay(spec, plan.epoch, store)
    record = there(spec, store)
    if record is None:
        return None
    # What only another lock vouched for, this one must vouch for too.
    vouched = record.looked_into or ImageLayer(title=spec.title, blob=record.blob) in plan.locked.layers
    return record.blob if vouched else None


def _overlay(spec: OverlayLayer, epoch: int, store: Store) -> Blob:
    """A few small files: encoded each time, which costs less than finding out whether it must be."""
    data, blob = encoded(spec, epoch)
    if not store.has_blob(blob.digest, blob.size):
        temporary = store.temporary("overlay")
        temporary.write_bytes(data)
        store.adopt(temporary, store.blob(blob.digest))
    return blob


def forecast(plan: ImagePlan, store: Store) -> dict[str, Any]:
    """What `build` would do for each layer (reuse, convert, make), and what it would download."""
    layers: list[dict[str, Any]] = []
    absent: list[LockedWheel | LockedArchive] = []
    for spec in plan.layers:
        do = "make"
        match spec:
            case ArtefactLayer():
                there = store.has_blob(spec.artefact.digest, spec.artefact.size)
            case OverlayLayer():
                there = False
            case WheelLayer() | ToolkitLayer() | ProgramLayer():
                there = known_blob(spec, plan, store) is not None
                if not there:
                    absent += [one for one in spec.inputs if not _at_hand(one, store)]
                if not isinstance(spec, ProgramLayer):
                    do = "convert"
        layers.append({"what": spec.title, "do": "reuse" if there else do, "bytes": spec.size})
    unmeasured = sum(not one.size for one in absent)
    return {
        "layers": layers,
        "downloads": len(absent),
        "download_bytes": sum(one.size for one in absent),
        **({"of_unknown_size": unmeasured} if unmeasured else {}),
    }


def _at_hand(one: LockedWheel | LockedArchive, store: Store) -> bool:
    if isinstance(one, LockedArchive):
        return (store.root / kept_path(one)).is_file()
    return store.has_wheel(one)


def known_layers(locked: LockedCell, store: Store) -> tuple[ImageLayer, ...] | None:
    """The layers of wheels and archives that *store* has of this lock, in order; None when one is missing.

    Only those count whose wheels were looked into: a lock must not vouch for itself. Where it has a part of
    them, which came from the plain cell's lock, the others are added.
    """
    found = []
    specs, told = made_layers(locked), {layer.title: layer for layer in locked.layers}
    partly = any(spec.title not in told for spec in specs)
    for spec in specs:
        if partly and spec.title in told:
            found.append(told[spec.title])
            continue
        record = record_of(spec, store)
        if record is None or not record.looked_into:
            return None
        found.append(ImageLayer(title=spec.title, blob=record.blob))
    return tuple(found)
