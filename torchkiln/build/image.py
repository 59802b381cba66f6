"""ImagePlan → BuiltImage, without a daemon: wheels become layers, layers an OCI layout.

What the store already holds is used as it is. For the rest, downloads run in threads and conversions in
processes, a wheel being converted while it arrives. A layer enters the store only when it is whole and its
wheels are the locked ones; the image's name is written last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torchkiln.build.cache_keys import key_of
from torchkiln.build.confined import demand_sandbox, interpreter, sandbox_fault
from torchkiln.build.cuda_layers import kept_path, toolkit_layers
from torchkiln.build.dependencies import demand_agreement
from torchkiln.errors import BuildFailed
from torchkiln.model.digest import Digest
from torchkiln.model.image import BuiltImage, BuiltLayer
from torchkiln.model.layer_format import DEFAULT_FORMAT, LayerFormat
from torchkiln.model.lock import LockedArchive, LockedCell, LockedLayer, LockedWheel
from torchkiln.model.plan import ImagePlan, LayerSpec
from torchkiln.model.progress import ArchiveSource, Fetcher, Observer
from torchkiln.oci import tar
from torchkiln.oci.compression import TARGETS
from torchkiln.oci.encode import encode_bytes
from torchkiln.oci.layer import Written
from torchkiln.oci.layout import write_image
from torchkiln.plan.layers import made_layers
from torchkiln.plan.plan import layer_bytes
from torchkiln.store.store import Store

_RECORDS = "layers"


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """An image, and how it came about: seconds by stage (stages overlap), layers not made anew."""

    image: BuiltImage
    seconds: tuple[tuple[str, float], ...]
    reused: tuple[str, ...]  # titles
    layer_format: LayerFormat = DEFAULT_FORMAT


def build(
    plan: ImagePlan,
    store: Store,
    layout: Path,
    *,
    fetcher: Fetcher,
    observer: Observer,
    archives: ArchiveSource | None = None,
    refs: Sequence[str] = (),
    base_moved: tuple[str, ...] = (),
    layer_format: LayerFormat = DEFAULT_FORMAT,
    on_layer: Callable[[BuiltLayer], None] = lambda _: None,
    stranger: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Build:
    """Build *plan* into *layout* under *refs* (the plan's tag when none).

    :param archives: where those of NVIDIA's toolkit come from; a plan without any does not ask.
    :param base_moved: what `base.artefact.ensure` told; the blobs of base and tools are in *store*.
    :param layer_format: other than "gzip": layers are made as ever, compared with the lock, then
        brought into it.
    :param on_layer: hears of each layer of the image as soon as its blob is in *store*.
    :param stranger: the lock is not the user's own: without a sandbox its base's Python does not run.
    :raises BuildFailed: a wheel is refused or cannot be had, asks for what the lock lacks, a layer is not the
        recorded one, no space.
    :raises ToolMissing: it is a stranger's, and this host can make no sandbox.
    """
    started = time.monotonic()
    reused: list[str] = []
    built: dict[LayerSpec, BuiltLayer] = {}
    for spec in plan.layers:
        known = _known(spec, plan, store)
        if known is not None:
            built[spec] = known
            reused.append(spec.title)
    target = TARGETS.get(layer_format)
    tell: Callable[[BuiltLayer], None] = (lambda _: None) if target else on_layer
    for layer in built.values():
        tell(layer)
    missing = [spec for spec in plan.layers if spec not in built]
    seconds: dict[str, float] = {}
    if of_toolkit := [spec for spec in missing if spec.kind == "toolkit"]:
        began = time.monotonic()
        built |= toolkit_layers(of_toolkit, plan.locked, store, archives, observer, tell)
        seconds["toolkit"] = time.monotonic() - began
    if of_wheels := [spec for spec in missing if spec.kind in ("wheels", "program")]:

        def command() -> tuple[str, ...]:
            if stranger:
                demand_sandbox()
            elif without := sandbox_fault():
                say(f"this host cannot make a sandbox ({without}): the base's Python runs with a filter only")
            return tuple(interpreter(plan.locked.base, store).argv())

        made, of_kitchen, waited = _make(of_wheels, plan, store, fetcher, observer, tell, command)
        built |= made
        seconds |= of_kitchen
        reused += waited
    layers = tuple(built[spec] for spec in plan.layers)
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
                on_layer(layer)
            seconds = {**seconds, "compress": time.monotonic() - began}
        writing = time.monotonic()
        observer.begin("write", "layout", len(layers))
        image = write_image(layout, plan, layers, store.blob, refs=refs, layer_format=layer_format)
        observer.end("write", "layout")
    now = time.monotonic()
    return Build(
        image=replace(image, base_moved=base_moved),
        seconds=(*sorted(seconds.items()), ("write", now - writing), ("total", now - started)),
        reused=tuple(spec.title for spec in plan.layers if spec.title in reused),
        layer_format=layer_format,
    )


def forecast(plan: ImagePlan, store: Store) -> dict[str, Any]:
    """What `build` would do for each layer (reuse, convert, make), and what it would download."""
    layers: list[dict[str, Any]] = []
    absent: list[LockedWheel | LockedArchive] = []
    for spec in plan.layers:
        if spec.artefact:
            there = store.has_blob(spec.artefact.digest, spec.artefact.size)
        else:
            there = spec.kind != "overlay" and _known(spec, plan, store) is not None
        if not there:
            absent += [wheel for wheel in spec.wheels if not store.has_wheel(wheel)]
            absent += [one for one in spec.archives if not (store.root / kept_path(one)).is_file()]
        do = "reuse" if there else "convert" if spec.kind in ("wheels", "toolkit") else "make"
        layers.append({"what": spec.title, "do": do, "bytes": layer_bytes(spec)})
    unmeasured = sum(not one.size for one in absent)
    return {
        "layers": layers,
        "downloads": len(absent),
        "download_bytes": sum(one.size for one in absent),
        **({"of_unknown_size": unmeasured} if unmeasured else {}),
    }


def known_layers(locked: LockedCell, store: Store) -> tuple[LockedLayer, ...] | None:
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
        record = store.record(_RECORDS, key_of(spec, locked))
        if record is None or not record.get("looked_into"):
            return None
        found.append(LockedLayer(**asdict(_layer(spec, record))))
    return tuple(found)


def _known(spec: LayerSpec, plan: ImagePlan, store: Store) -> BuiltLayer | None:
    """The layer of *spec* if it needs no work: base, tools, overlay, or another that was made before."""
    locked = plan.locked
    if spec.artefact:
        return BuiltLayer.of_artefact(spec.artefact, spec.title)
    if spec.kind == "overlay":
        return _overlay(spec, plan.epoch, store)
    record = store.record(_RECORDS, key_of(spec, locked))
    if record is None or not store.has_blob(Digest(record["digest"]), record["size"]):
        return None
    layer = _layer(spec, record)
    # What only another lock vouched for, this one must vouch for too.
    if not record.get("looked_into") and LockedLayer(**asdict(layer)) not in locked.layers:
        return None
    return layer


def _overlay(spec: LayerSpec, epoch: int, store: Store) -> BuiltLayer:
    """A few small files: encoded each time, which costs less than finding out whether it must be."""
    blob, encoded = encode_bytes(tar.archive((*spec.files, *spec.links), mtime=epoch))
    if not store.has_blob(encoded.digest, encoded.size):
        temporary = store.temporary("overlay")
        temporary.write_bytes(blob)
        store.adopt(temporary, store.blob(encoded.digest))
    return BuiltLayer(title=spec.title, **asdict(encoded))


def _make(
    missing: Iterable[LayerSpec],
    plan: ImagePlan,
    store: Store,
    fetcher: Fetcher,
    observer: Observer,
    on_layer: Callable[[BuiltLayer], None],
    command: Callable[[], tuple[str, ...]],
) -> tuple[dict[LayerSpec, BuiltLayer], dict[str, float], list[str]]:
    """Make the wheel layers that are *missing*, unless another process does so at this moment.

    Locks are taken in the order of their names, so two builds cannot wait for each other.

    :param command: gives what starts the base's Python.
    """
    from torchkiln.build.program_layer import make_program
    from torchkiln.build.scheduler import Job, Scheduler  # slow to load, and most builds change nothing

    python = plan.locked.base.python
    recorded = {layer.title: layer for layer in plan.locked.layers}
    keys = {key_of(spec, plan.locked): spec for spec in missing}
    made: dict[LayerSpec, BuiltLayer] = {}
    waited: list[str] = []
    with ExitStack() as locks:
        jobs = []
        for key in sorted(keys):
            locks.enter_context(store.lock(f"layer-{key}", f"makes layer {keys[key].title}"))
            known = _known(keys[key], plan, store)
            if known is None and keys[key].kind == "program":
                written, blob = make_program(keys[key], store, fetcher, observer)
                _take(key, written, blob, store, looked_into=True)
                made[keys[key]] = _layer(keys[key], asdict(written))
                on_layer(made[keys[key]])
            elif known is None:
                spec = keys[key]
                told = _written(recorded[spec.title]) if spec.title in recorded else None
                jobs.append(Job(key=key, title=spec.title, wheels=spec.wheels, recorded=told))
            else:
                made[keys[key]] = known
                on_layer(known)
                waited.append(keys[key].title)
        argv = command() if jobs else ()
        with Scheduler(store, fetcher, observer, python=python, interpreter=argv) as scheduler:
            for job, written, blob in scheduler.run(jobs):
                _take(job.key, written, blob, store, looked_into=written != job.recorded)
                made[keys[job.key]] = _layer(keys[job.key], asdict(written))
                on_layer(made[keys[job.key]])
            return made, scheduler.seconds, waited


def _take(key: str, written: Written, blob: Path, store: Store, *, looked_into: bool) -> None:
    store.adopt(blob, store.blob(written.digest))
    store.put_record(_RECORDS, key, {**asdict(written), "looked_into": looked_into})


def _written(layer: LockedLayer | BuiltLayer) -> Written:
    return Written(digest=layer.digest, diff_id=layer.diff_id, size=layer.size, unpacked=layer.unpacked)


def _layer(spec: LayerSpec, record: dict[str, Any]) -> BuiltLayer:
    return BuiltLayer(
        title=spec.title,
        digest=Digest(record["digest"]),
        diff_id=Digest(record["diff_id"]),
        size=record["size"],
        unpacked=record["unpacked"],
    )


def _told(layer: LockedLayer | BuiltLayer) -> str:
    """*layer*'s digest, and what its tar is."""
    return f"{layer.digest} (diff_id {layer.diff_id}, {layer.unpacked} bytes unpacked)"


def _compare_with_lock(layers: Sequence[BuiltLayer], plan: ImagePlan) -> None:
    """Where the lock has recorded layers, these must be they: the same lock gives the same image."""
    recorded = {layer.title: layer for layer in plan.locked.layers}
    faults = [
        f"layer {layer.title!r} is {_told(layer)}, the lock has {_told(recorded[layer.title])}"
        for layer in layers
        if layer.title in recorded and _written(recorded[layer.title]) != _written(layer)
    ]
    if faults:
        raise BuildFailed(
            "\n".join(faults),
            hint="the recipe changed without a new number, or the cache is damaged: try an empty one",
        )
