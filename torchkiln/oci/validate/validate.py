"""Finds every fault of an OCI layout with code that the writers do not use."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchkiln.errors import VerificationFailed
from torchkiln.oci.validate.documents import DocumentInspector, ImageClaim, LayoutFault
from torchkiln.oci.validate.layer import LayerFacts, inspect_layer
from torchkiln.util.processes import WorkerDied, Workers

_WORTH_PROCESSES = 64 << 20  # bytes of layers
_Key = tuple[str, str]  # digest and media type of a layer
_Found = Mapping[_Key, "LayerFacts | OSError"]


def validate(layout: Path, ref: str | None = None, *, workers: int | None = None) -> tuple[LayoutFault, ...]:
    """The faults of the image *ref* in *layout*, a name or a manifest digest; without *ref*, of all images.

    Every digest, size and diff_id is computed again, once for each layer, *workers* layers at a time
    (default: one for each core). Without *ref*, unreferenced blobs are faults, too.
    """
    documents = DocumentInspector(layout)
    documents.walk(ref)
    blobs = {(layer.digest, layer.media_type): documents.blob(layer.digest) for layer in documents.layers}
    found = _inspect_all(blobs, workers or os.cpu_count() or 1)
    faults = documents.faults
    reported: set[_Key] = set()
    for layer in documents.layers:
        # A shared layer is reported once, for the first image.
        if (key := (layer.digest, layer.media_type)) not in reported:
            reported.add(key)
            faults += (
                LayoutFault(where=layer.where, what=what) for what in _own_faults(layer.digest, found[key])
            )
    for image in documents.images:
        faults += _broken_claims(image, found)
    if ref is None and documents.index_was_read:
        faults += documents.unreferenced()
    return tuple(dict.fromkeys(faults))


def _own_faults(digest: str, found: LayerFacts | OSError) -> Iterator[str]:
    """The faults of a layer by itself."""
    if isinstance(found, OSError):
        yield f"blob {digest}: {found.strerror}"
        return
    if found.digest != digest:
        yield f"wrong digest: the content of blob {digest} has {found.digest}"
    yield from found.faults


def _broken_claims(image: ImageClaim, found: _Found) -> Iterator[LayoutFault]:
    """The faults of the layers of an image together, lowest first."""
    known: dict[str, bool] = {}  # path → whether it is a folder
    for number, layer in enumerate(image.layers):
        facts = found.get((layer.digest, layer.media_type))
        if not isinstance(facts, LayerFacts) or facts.diff_id is None:
            continue
        claim = image.diff_ids[number] if number < len(image.diff_ids) else facts.diff_id
        if claim != facts.diff_id:
            what = f"wrong diff_id: {claim} in the config, the layer has {facts.diff_id}"
            yield LayoutFault(where=layer.where, what=what)
        for parent in facts.missing_parents:
            if not known.get(parent):
                state = "not a directory" if parent in known else "missing"
                what = f"parent missing: {parent} is not in this layer and {state} in those below"
                yield LayoutFault(where=layer.where, what=what)
        known.update(dict.fromkeys(facts.folders, True))
        known.update(dict.fromkeys(facts.others, False))


def _inspect_all(blobs: Mapping[_Key, Path], workers: int) -> dict[_Key, LayerFacts | OSError]:
    """The facts of every layer; in processes, because isal holds the GIL while it inflates."""
    sizes = {key: _size(path) for key, path in blobs.items()}
    if workers == 1 or len(blobs) == 1 or sum(sizes.values()) < _WORTH_PROCESSES:
        return {key: _inspect(path, key[1]) for key, path in blobs.items()}
    longest_first = sorted(blobs, key=sizes.__getitem__, reverse=True)
    try:
        with Workers(workers, _default_sigint) as pool:
            try:
                tasks = {key: pool.submit(_inspect, blobs[key], key[1]) for key in longest_first}
                return {key: task.result() for key, task in tasks.items()}
            except BaseException:  # also Ctrl-C: leaving the context would wait for the layers
                pool.kill()
                raise
    except WorkerDied as error:
        raise VerificationFailed(
            "a process that checked a layer was killed", hint="check the free memory and run it again"
        ) from error


def _default_sigint() -> None:
    """Let Ctrl-C end a worker without a traceback; the parent reports it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _inspect(path: Path, media_type: str) -> LayerFacts | OSError:
    try:
        return inspect_layer(path, media_type)
    except OSError as error:
        return error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # deleted in the meantime: reading it reports that
        return 0
