"""Finds every fault of an OCI layout with code that the writers do not use."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

from torchkiln.errors import VerificationFailed
from torchkiln.model.progress import Observer, Silent
from torchkiln.oci.tar_names import is_in
from torchkiln.oci.validate.documents import DocumentInspector, ImageClaim, LayoutFault
from torchkiln.oci.validate.layer import LayerFacts, inspect_layer
from torchkiln.util.processes import SPAWN, WorkerDied, Workers

_WORTH_PROCESSES = 64 << 20  # bytes of layers
_POLL = 0.2  # seconds between two reports of progress
_Key = tuple[str, str]  # digest and media type of a layer
_Found = Mapping[_Key, "LayerFacts | OSError"]


def validate(
    layout: Path, ref: str | None = None, *, workers: int | None = None, observer: Observer | None = None
) -> tuple[LayoutFault, ...]:
    """The faults of the image *ref* in *layout*, a name or a manifest digest; without *ref*, of all images.

    Every digest, size and diff_id is computed again, once for each layer, *workers* layers at a time
    (default: one for each core). Without *ref*, unreferenced blobs are faults, too. The bytes that were read
    are reported to *observer* as work "verify".
    """
    documents = DocumentInspector(Path(os.path.realpath(layout)))
    documents.walk(ref)
    blobs = {(layer.digest, layer.media_type): documents.blob(layer.digest) for layer in documents.layers}
    found = _inspect_all(blobs, workers or os.cpu_count() or 1, observer or Silent())
    faults = documents.faults
    reported: set[_Key] = set()
    for layer in documents.layers:
        # A shared layer is reported once, for the first image.
        if (key := (layer.digest, layer.media_type)) not in reported:
            reported.add(key)
            own = _own_faults(layer.digest, found[key])
            faults += (LayoutFault(where=layer.where, what=what) for what in own)
    for image in documents.images:
        faults += _broken_claims(image, found)
    if ref is None and documents.index_was_read:
        faults += documents.unreferenced()
    return tuple(dict.fromkeys(faults))


def _own_faults(digest: str, found: LayerFacts | OSError) -> Iterator[str]:
    """The faults of a layer that do not depend on the image."""
    if isinstance(found, OSError):
        yield f"blob {digest}: {found.strerror}"
        return
    if found.digest != digest:
        yield f"wrong digest: the content of blob {digest} has {found.digest}"
    yield from found.faults


def _broken_claims(image: ImageClaim, found: _Found) -> Iterator[LayoutFault]:
    """The faults of an image's layers in combination: wrong diff_ids and missing parents; lowest first."""
    known: dict[str, bool] = {}  # path → whether it is a folder
    for number, layer in enumerate(image.layers):
        facts = found.get((layer.digest, layer.media_type))
        if not isinstance(facts, LayerFacts) or facts.diff_id is None:
            continue
        claim = image.diff_ids[number] if number < len(image.diff_ids) else facts.diff_id
        if claim != facts.diff_id:
            what = f"wrong diff_id: {claim} in the config, the layer has {facts.diff_id}"
            yield LayoutFault(where=layer.where, what=what)
        paths = facts.paths
        if paths.removed:
            known = {path: folder for path, folder in known.items() if not is_in(path, paths.removed)}
        for parent in paths.missing_parents():
            if not known.get(parent):
                state = "not a directory" if parent in known else "missing"
                what = f"parent missing: {parent} is not in this layer and {state} in those below"
                yield LayoutFault(where=layer.where, what=what)
        known |= dict.fromkeys(paths.folders, True) | dict.fromkeys(paths.others, False)


def _inspect_all(
    blobs: Mapping[_Key, Path], workers: int, observer: Observer
) -> dict[_Key, LayerFacts | OSError]:
    """The facts of every layer; in processes, because isal holds the GIL while it inflates."""
    sizes = {key: _size(path) for key, path in blobs.items()}
    for (digest, _), size in sizes.items():
        observer.begin("verify", digest, size)
    if workers == 1 or len(blobs) == 1 or sum(sizes.values()) < _WORTH_PROCESSES:
        return {key: _inspect_here(path, key, observer) for key, path in blobs.items()}
    longest_first = sorted(blobs, key=sizes.__getitem__, reverse=True)
    read = SPAWN.Array("Q", len(blobs), lock=False)
    try:
        with Workers(workers, _start_worker, read) as pool:
            try:
                tasks = {
                    pool.submit(_inspect_in_worker, slot, blobs[key], key[1]): (slot, key)
                    for slot, key in enumerate(longest_first)
                }
                _observe(tasks, read, observer)
                return {key: task.result() for task, (_, key) in tasks.items()}
            except BaseException:  # also Ctrl-C: leaving the context would wait for the layers
                pool.kill()
                raise
    except WorkerDied as error:
        raise VerificationFailed(
            "a process that checked a layer was killed", hint="check the free memory and run it again"
        ) from error


def _observe(
    tasks: Mapping[Future[LayerFacts | OSError], tuple[int, _Key]], read: Sequence[int], observer: Observer
) -> None:
    """Report the bytes that the processes have *read*, until all *tasks* are done."""
    reported, left = [0] * len(tasks), set(tasks)
    while left:
        done, left = wait(left, _POLL, FIRST_COMPLETED)
        for slot, (digest, _) in tasks.values():
            if count := read[slot] - reported[slot]:
                reported[slot] += count
                observer.advance("verify", digest, count)
        for task in done:
            observer.end("verify", tasks[task][1][0])


_read: Any  # in a worker: the array of bytes read, one slot for each layer


def _start_worker(read: Any) -> None:
    """Let Ctrl-C end a worker without a traceback; the parent reports it."""
    global _read
    _read = read
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _inspect_in_worker(slot: int, path: Path, media_type: str) -> LayerFacts | OSError:
    def advanced(count: int) -> None:
        _read[slot] += count

    return _inspect(path, media_type, advanced)


def _inspect_here(path: Path, key: _Key, observer: Observer) -> LayerFacts | OSError:
    digest, media_type = key
    found = _inspect(path, media_type, lambda count: observer.advance("verify", digest, count))
    observer.end("verify", digest)
    return found


def _inspect(path: Path, media_type: str, advanced: Callable[[int], None]) -> LayerFacts | OSError:
    try:
        return inspect_layer(path, media_type, advanced)
    except OSError as error:
        return error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # deleted in the meantime: reading it reports that
        return 0
