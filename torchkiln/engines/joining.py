"""Layers of many gzip members → the same layers of one member each, for readers that stop at the first.

Joined blobs are kept in the store by what they were joined from, so that each is made once. Two layers at a
time on two cores: zlib and the hashes run without the GIL.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace

from torchkiln.engines.conversion import cores
from torchkiln.engines.observer import Observer
from torchkiln.errors import BuildFailed
from torchkiln.nouns import BuiltLayer, Digest
from torchkiln.oci.join import NotJoinable, join
from torchkiln.oci.layer import Written
from torchkiln.store import Store

_RECORDS = "joined"  # by the hex of the source's digest; a change of `join`'s bytes needs another name here


class _Cancelled(Exception):
    """Another layer failed, or the user gave up."""


def join_layers(layers: Sequence[BuiltLayer], store: Store, observer: Observer) -> tuple[BuiltLayer, ...]:
    """*layers*, whose blobs are in *store*, as layers of one gzip member: other digests, the same diff_ids.

    :raises BuildFailed: a blob is damaged, or the cache cannot be written.
    :raises ToolMissing: the system has no zlib.
    """
    cancelled = threading.Event()

    def call_off(future: Future[BuiltLayer]) -> None:
        if future.exception():
            cancelled.set()

    largest_first = sorted(set(layers), key=lambda layer: (-layer.size, layer.digest))
    with ThreadPoolExecutor(cores(), "join") as pool:
        try:
            running = {
                layer: pool.submit(_joined, layer, store, observer, cancelled) for layer in largest_first
            }
            for future in running.values():
                future.add_done_callback(call_off)
            # Who merely heard that all is off says nothing: the cause will.
            failed = [error for future in running.values() if (error := future.exception())]
        finally:
            cancelled.set()  # for those that still work when we are interrupted: the pool waits for them
    if failed:
        raise next((error for error in failed if not isinstance(error, _Cancelled)), failed[0])
    return tuple(running[layer].result() for layer in layers)


def joined_records(layers: Sequence[BuiltLayer]) -> frozenset[str]:
    """What `join_layers` may make of *layers*, as `Store.claim` wants it: records stand for their blobs."""
    return frozenset(f"records/{_RECORDS}/{_key(layer)}.json" for layer in layers)


def _key(layer: BuiltLayer) -> str:
    return layer.digest.removeprefix("sha256:")


def _joined(layer: BuiltLayer, store: Store, observer: Observer, cancelled: threading.Event) -> BuiltLayer:
    """*layer* joined: as the store has it, or made now. No two processes join one blob at once."""

    def check() -> None:
        if cancelled.is_set():
            raise _Cancelled

    check()
    key = _key(layer)
    with store.lock(f"joined-{key}", f"joins layer {layer.title}", check=check):
        record = store.record(_RECORDS, key)
        if record is not None and store.has_blob(Digest(record["digest"]), record["size"]):
            return replace(layer, **record)
        written = _make(layer, store, observer, check)
        store.put_record(_RECORDS, key, asdict(written))
        return replace(layer, **asdict(written))


def _make(layer: BuiltLayer, store: Store, observer: Observer, check: Callable[[], None]) -> Written:
    source, out = store.blob(layer.digest), store.temporary("joined")

    def advanced(count: int) -> None:
        check()
        observer.advance("join", layer.title, count)

    observer.begin("join", layer.title, layer.size)
    try:
        with source.open("rb", buffering=0) as blob, out.open("wb") as file:
            written = join(blob, file, advanced=advanced)
        if (written.diff_id, written.unpacked) != (layer.diff_id, layer.unpacked):
            raise NotJoinable("it does not hold what its digest promised")
        store.adopt(out, store.blob(written.digest))
    except NotJoinable as error:
        raise BuildFailed(
            f"layer {layer.title!r}: {source}: {error}",
            hint="the cache is damaged: delete that file and build again",
        ) from error
    except OSError as error:
        raise BuildFailed(
            f"layer {layer.title!r} cannot be joined: {error.strerror or error}",
            hint="a joined layer takes the room of the plain one once more, in the cache",
        ) from error
    finally:
        out.unlink(missing_ok=True)
    observer.end("join", layer.title)
    return written
