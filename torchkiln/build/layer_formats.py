"""gzip layers → the same layers in another format.

Such blobs are kept in the store by what they were made from, so that each is made once. Several layers are
made side by side: libzstd and the hashes run without the GIL.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO, Literal

from torchkiln.build.cache_keys import format_key
from torchkiln.build.records import blob_of
from torchkiln.build.worker import cores
from torchkiln.errors import BuildFailed
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob, ImageLayer
from torchkiln.model.progress import Observer
from torchkiln.oci import zstd
from torchkiln.oci.opening import open_gzip
from torchkiln.store.store import Store

_Told = Callable[[int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetFormat:
    """One of the forms that a finished layer can be brought into."""

    work: Literal["compress"]
    done: str  # "compressed"
    records: str  # what the store calls the records of such layers; in cache_keys.FORMAT_RECORDS
    encoder: str  # what decides the bytes beside the source
    length: Callable[[ImageLayer], int]  # of what `make` reads
    make: Callable[[ImageLayer, Path, BinaryIO, _Told], Blob]
    side_by_side: int  # at most, which bounds memory


def _compress(layer: ImageLayer, source: Path, out: BinaryIO, advanced: _Told) -> Blob:
    with open_gzip(source) as tar:
        return zstd.compress(tar, out, unpacked=layer.blob.unpacked, advanced=advanced)


FORMATS: Mapping[Literal["zstd"], TargetFormat] = {
    "zstd": TargetFormat(
        work="compress",
        done="compressed",
        records="zstd",
        encoder=zstd.ENCODER,
        length=lambda layer: layer.blob.unpacked,
        make=_compress,
        side_by_side=4,
    ),
}


class _Cancelled(Exception):
    """Another layer failed, or the user gave up."""


class _Another(Exception):
    """The blob is whole, but not the one that it should be."""


def convert(
    target: TargetFormat, layers: Sequence[ImageLayer], store: Store, observer: Observer
) -> tuple[ImageLayer, ...]:
    """*layers*, whose blobs are in *store*, in another *target*: other digests, the same diff_ids.

    :raises BuildFailed: a blob is damaged, or the cache cannot be written.
    :raises ToolMissing: this Python has another libzstd.
    """
    cancelled = threading.Event()

    def call_off(future: Future[ImageLayer]) -> None:
        if future.exception():
            cancelled.set()

    largest_first = sorted(set(layers), key=lambda layer: (-layer.blob.size, layer.blob.digest))
    with ThreadPoolExecutor(min(cores(), target.side_by_side), target.work) as pool:
        try:
            running = {
                layer: pool.submit(_converted, target, layer, store, observer, cancelled)
                for layer in largest_first
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


def records_of(layers: Sequence[ImageLayer], target: TargetFormat) -> frozenset[str]:
    """What `convert` may make of *layers*, as `Store.claim` wants it: records stand for their blobs."""
    return frozenset(
        f"records/{target.records}/{format_key(one.blob.digest, target.encoder)}.json" for one in layers
    )


def _converted(
    target: TargetFormat, layer: ImageLayer, store: Store, observer: Observer, cancelled: threading.Event
) -> ImageLayer:
    """*layer* as the store has it, or made now. No two processes make one at once."""

    def check() -> None:
        if cancelled.is_set():
            raise _Cancelled

    check()
    key = format_key(layer.blob.digest, target.encoder)
    with store.lock(f"{target.records}-{key}", f"wants layer {layer.title} {target.done}", check=check):
        record = store.record(target.records, key)
        if record is not None and store.has_blob(Digest(record["digest"]), record["size"]):
            return replace(layer, blob=blob_of(record))
        written = _make(target, layer, store, observer, check)
        store.put_record(target.records, key, asdict(written))
        return replace(layer, blob=written)


def _make(
    target: TargetFormat, layer: ImageLayer, store: Store, observer: Observer, check: Callable[[], None]
) -> Blob:
    source, out = store.blob(layer.blob.digest), store.temporary(target.records)

    def advanced(count: int) -> None:
        check()
        observer.advance(target.work, layer.title, count)

    observer.begin(target.work, layer.title, target.length(layer))
    try:
        with out.open("wb") as file:
            written = target.make(layer, source, file, advanced)
        if (written.diff_id, written.unpacked) != (layer.blob.diff_id, layer.blob.unpacked):
            raise _Another("it does not hold what its digest promised")
        store.adopt(out, store.blob(written.digest))
    except (zstd.NotCompressible, _Another) as error:
        raise BuildFailed(
            f"layer {layer.title!r}: {source}: {error}",
            hint="the cache is damaged: delete that file and build again",
        ) from error
    except OSError as error:
        raise BuildFailed(
            f"layer {layer.title!r} cannot be {target.done}: {error.strerror or error}",
            hint="such a layer takes room in the cache beside the plain one",
        ) from error
    finally:
        out.unlink(missing_ok=True)
    observer.end(target.work, layer.title)
    return written
