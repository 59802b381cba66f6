"""ImagePlan → BuiltImage, without a daemon: wheels become layers, layers an OCI layout.

What the store already holds is used as it is. For the rest, downloads run in threads and conversions in
processes, a wheel being converted while it arrives. A layer enters the store only when it is whole and its
wheels are the locked ones; the image's name is written last.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchkiln.build.cache_keys import key_of
from torchkiln.build.confined import demand_sandbox, interpreter, sandbox_fault
from torchkiln.build.cuda_layers import kept_path, toolkit_layers
from torchkiln.build.dependencies import demand_agreement
from torchkiln.build.environment import Environment
from torchkiln.build.records import keep, record_of, there
from torchkiln.errors import BuildFailed
from torchkiln.model.digest import LayerFormat
from torchkiln.model.image import BuiltImage
from torchkiln.model.layer import Blob, ImageLayer
from torchkiln.model.lock import LockedArchive, LockedBase, LockedCell, LockedWheel
from torchkiln.model.plan import (
    ArtefactLayer,
    ImagePlan,
    OverlayLayer,
    PlannedLayer,
    ProgramLayer,
    ToolkitLayer,
    WheelLayer,
)
from torchkiln.oci import tar
from torchkiln.oci.encode import encode_bytes
from torchkiln.oci.layout import write_image
from torchkiln.plan.layers import made_layers
from torchkiln.store.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """An image, and how it came about: seconds by stage (stages overlap), layers not made anew."""

    image: BuiltImage
    seconds: tuple[tuple[str, float], ...]
    reused: tuple[str, ...]  # titles
    layer_format: LayerFormat = "gzip"


def build(
    plan: ImagePlan,
    layout: Path,
    environment: Environment,
    *,
    refs: Sequence[str] = (),
    layer_format: LayerFormat = "gzip",
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
    making = environment if layer_format == "gzip" else replace(environment, on_layer=lambda _: None)
    layers, reused, seconds = _made(plan, making, stranger=stranger)
    _compare_with_lock(layers, plan)
    demand_agreement(plan.locked, store)
    with ExitStack() as claims:
        if layer_format != "gzip":
            from torchkiln.build.layer_formats import FORMATS, convert, records_of  # only here: slow to load

            began, form = time.monotonic(), FORMATS[layer_format]
            what = f"wants the layers of {plan.tag} {form.done}"
            claims.enter_context(store.claim(what, records_of(layers, form)))
            layers = convert(form, layers, store, observer)
            for layer in layers:
                environment.on_layer(layer.blob)
            seconds[form.work] = time.monotonic() - began
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


def _made(
    plan: ImagePlan, environment: Environment, *, stranger: bool
) -> tuple[tuple[ImageLayer, ...], list[str], dict[str, float]]:
    """All layers of *plan*, their blobs in the store; titles of those not made anew; seconds by stage."""
    store = environment.store
    built = {spec: known for spec in plan.layers if (known := _known(spec, plan, store))}
    reused = [spec.title for spec in built]
    for blob in built.values():
        environment.on_layer(blob)
    missing = [spec for spec in plan.made if spec not in built]
    seconds: dict[str, float] = {}
    if of_toolkit := [spec for spec in missing if isinstance(spec, ToolkitLayer)]:
        began = time.monotonic()
        built |= toolkit_layers(
            of_toolkit, store, environment.archives, environment.observer, environment.on_layer
        )
        seconds["toolkit"] = time.monotonic() - began
    if of_wheels := [spec for spec in missing if not isinstance(spec, ToolkitLayer)]:
        made, of_scheduler, waited = _make(of_wheels, plan, environment, stranger=stranger)
        built |= made
        seconds |= of_scheduler
        reused += waited
    layers = tuple(ImageLayer(title=spec.title, blob=built[spec]) for spec in plan.layers)
    return layers, reused, seconds


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
                there = _known(spec, plan, store) is not None
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


def _at_hand(one: LockedWheel | LockedArchive, store: Store) -> bool:
    if isinstance(one, LockedArchive):
        return (store.root / kept_path(one)).is_file()
    return store.has_wheel(one)


def _known(spec: PlannedLayer, plan: ImagePlan, store: Store) -> Blob | None:
    """The blob of *spec* if it needs no work: base, tools, overlay, or another that was made before."""
    if isinstance(spec, ArtefactLayer):
        return spec.blob
    if isinstance(spec, OverlayLayer):
        return _overlay(spec, plan.epoch, store)
    record = there(spec, store)
    # What only another lock vouched for, this one must vouch for too.
    if record and (
        record.looked_into or ImageLayer(title=spec.title, blob=record.blob) in plan.locked.layers
    ):
        return record.blob
    return None


def _overlay(spec: OverlayLayer, epoch: int, store: Store) -> Blob:
    """A few small files: encoded each time, which costs less than finding out whether it must be."""
    data, blob = encode_bytes(tar.archive((*spec.files, *spec.links), mtime=epoch))
    if not store.has_blob(blob.digest, blob.size):
        temporary = store.temporary("overlay")
        temporary.write_bytes(data)
        store.adopt(temporary, store.blob(blob.digest))
    return blob


def _make(
    missing: Iterable[WheelLayer | ProgramLayer], plan: ImagePlan, environment: Environment, *, stranger: bool
) -> tuple[dict[PlannedLayer, Blob], dict[str, float], list[str]]:
    """Make the layers that are *missing*, unless another process does so at this moment.

    Locks are taken in the order of their names, so two builds cannot wait for each other.
    """
    from torchkiln.build.program_layer import make_program
    from torchkiln.build.scheduler import Job, Scheduler  # slow to load, and most builds change nothing

    store = environment.store
    recorded = {layer.title: layer.blob for layer in plan.locked.layers}
    keys = {key_of(spec): spec for spec in missing}
    made: dict[PlannedLayer, Blob] = {}
    waited: list[str] = []
    with ExitStack() as locks:
        jobs = []
        for key in sorted(keys):
            locks.enter_context(store.lock(f"layer-{key}", f"makes layer {keys[key].title}"))
            spec = keys[key]
            if known := _known(spec, plan, store):
                made[spec] = known
                environment.on_layer(known)
                waited.append(spec.title)
            elif isinstance(spec, ProgramLayer):
                made[spec], path = make_program(spec, environment)
                keep(spec, made[spec], path, store)
                environment.on_layer(made[spec])
            else:
                jobs.append(
                    Job(key=key, title=spec.title, wheels=spec.wheels, recorded=recorded.get(spec.title))
                )
        argv = _interpreter(plan.locked.base, environment, stranger=stranger) if jobs else ()
        with Scheduler(environment, python=plan.locked.base.python, interpreter=argv) as scheduler:
            for job, blob, path in scheduler.run(jobs):
                keep(keys[job.key], blob, path, store, looked_into=blob != job.recorded)
                made[keys[job.key]] = blob
                environment.on_layer(blob)
            return made, scheduler.seconds, waited


def _interpreter(base: LockedBase, environment: Environment, *, stranger: bool) -> tuple[str, ...]:
    """What starts the base's Python."""
    if stranger:
        demand_sandbox()
    elif without := sandbox_fault():
        environment.say(
            f"this host cannot make a sandbox ({without}): the base's Python runs with a filter only"
        )
    return tuple(interpreter(base, environment.store).argv())


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
