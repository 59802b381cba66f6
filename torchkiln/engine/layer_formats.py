"""Converts gzip layers to another compression.

Converted blobs are recorded in the store by the original layer, so that each is made once. Several layers are
converted in parallel: libzstd and the hashes run without the GIL.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace

from torchkiln.engine.cache_keys import format_key
from torchkiln.engine.records import blob_of
from torchkiln.engine.worker import cores
from torchkiln.errors import BuildFailed
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob, ImageLayer
from torchkiln.model.progress import Observer
from torchkiln.oci.compression import GZIP, TargetCompression
from torchkiln.oci.layer import NotCompressible
from torchkiln.store.store import Store


class _Cancelled(Exception):
    """Another layer failed, or the user interrupted."""


class _WrongContent(Exception):
    """The source is readable, but has another diff_id."""


def convert(
    target: TargetCompression, layers: Sequence[ImageLayer], store: Store, observer: Observer
) -> tuple[ImageLayer, ...]:
    """*layers*, whose blobs are in *store*, converted to *target*: other digests, the same diff_ids.

    :raises BuildFailed: a blob is damaged, or the cache cannot be written.
    :raises ToolMissing: another version of the encoder is installed.
    """
    cancelled = threading.Event()

    def cancel_others(future: Future[ImageLayer]) -> None:
        if future.exception():
            cancelled.set()

    largest_first = sorted(set(layers), key=lambda layer: (-layer.blob.size, layer.blob.digest))
    with ThreadPoolExecutor(min(cores(), target.max_parallel), "compress") as pool:
        try:
            running = {
                layer: pool.submit(_converted, target, layer, store, observer, cancelled)
                for layer in largest_first
            }
            for future in running.values():
                future.add_done_callback(cancel_others)
            # A cancelled conversion is not the cause of the failure.
            failed = [error for future in running.values() if (error := future.exception())]
        finally:
            cancelled.set()  # ends running conversions after an interrupt: the pool waits for them
    if failed:
        raise next((error for error in failed if not isinstance(error, _Cancelled)), failed[0])
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
            raise _Cancelled

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
            raise _WrongContent("diff_id mismatch")
        store.adopt(out, store.blob(written.digest))
    except (NotCompressible, _WrongContent) as error:
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
