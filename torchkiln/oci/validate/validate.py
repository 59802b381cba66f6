"""OCI layout -> every fault in it, all at once. An oracle: it recomputes all, by code of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchkiln.errors import VerificationFailed
from torchkiln.oci.validate.documents import DocumentInspector, Fault, ImageClaim
from torchkiln.oci.validate.layer import LayerFacts, inspect_layer
from torchkiln.util.processes import WorkerDied, Workers

_WORTH_PROCESSES = 64 << 20  # bytes of layers
_Key = tuple[str, str]  # digest and media type of a layer
_Found = Mapping[_Key, "LayerFacts | OSError"]


def validate(layout: Path, ref: str | None = None, *, workers: int | None = None) -> tuple[Fault, ...]:
    """What is wrong with the image *ref* of *layout*, a name or a manifest digest; without one, with all.

    Every digest, size and diff_id is computed anew, a layer that several images share only once; *workers*
    layers at a time (default: one a core). Blobs that nobody needs are faults when all of it is asked.
    """
    documents = DocumentInspector(layout)
    documents.walk(ref)
    blobs = {(layer.digest, layer.media_type): documents.blob(layer.digest) for layer in documents.layers}
    found = _inspect_all(blobs, workers or os.cpu_count() or 1)
    faults = documents.faults
    told: set[_Key] = set()
    for layer in documents.layers:
        # What several images share is told once, where it was first named.
        if (key := (layer.digest, layer.media_type)) not in told:
            told.add(key)
            faults += (Fault(where=layer.where, what=what) for what in _own_faults(layer.digest, found[key]))
    for image in documents.images:
        faults += _broken_claims(image, found)
    if ref is None and documents.index_was_read:
        faults += documents.strays()
    return tuple(dict.fromkeys(faults))


def _own_faults(digest: str, found: LayerFacts | OSError) -> Iterator[str]:
    """What is wrong with a layer, whoever uses it."""
    if isinstance(found, OSError):
        yield f"blob {digest}: {found.strerror}"
        return
    if found.digest != digest:
        yield f"wrong digest: the blob {digest} is {found.digest} in truth"
    yield from found.faults


def _broken_claims(image: ImageClaim, found: _Found) -> Iterator[Fault]:
    """What is wrong with an image's layers taken together, from the lowest up."""
    known: dict[str, bool] = {}  # path -> is it a folder
    for number, layer in enumerate(image.layers):
        facts = found.get((layer.digest, layer.media_type))
        if not isinstance(facts, LayerFacts) or facts.diff_id is None:
            continue
        claim = image.diff_ids[number] if number < len(image.diff_ids) else facts.diff_id
        if claim != facts.diff_id:
            what = f"wrong diff_id: {claim} in the config, {facts.diff_id} in truth"
            yield Fault(where=layer.where, what=what)
        for parent in facts.wants:
            if not known.get(parent):
                state = "no folder" if parent in known else "not there"
                what = f"parent missing: {parent} is not in this layer and {state} in those below"
                yield Fault(where=layer.where, what=what)
        known.update(dict.fromkeys(facts.folders, True))
        known.update(dict.fromkeys(facts.others, False))


def _inspect_all(blobs: Mapping[_Key, Path], workers: int) -> dict[_Key, LayerFacts | OSError]:
    """The facts of every layer; in processes, for isal holds the interpreter's lock while it inflates."""
    sizes = {key: _size(path) for key, path in blobs.items()}
    if workers == 1 or len(blobs) == 1 or sum(sizes.values()) < _WORTH_PROCESSES:
        return {key: _inspect(path, key[1]) for key, path in blobs.items()}
    longest_first = sorted(blobs, key=sizes.__getitem__, reverse=True)
    try:
        with Workers(workers, _hear_ctrl_c) as pool:
            try:
                tasks = {key: pool.submit(_inspect, blobs[key], key[1]) for key in longest_first}
                return {key: task.result() for key, task in tasks.items()}
            except BaseException:  # Ctrl-C too: leaving the context would wait for layers of gigabytes
                pool.kill()
                raise
    except WorkerDied as error:
        raise VerificationFailed(
            "a process that checked a layer was killed", hint="is there memory enough? nothing was found out"
        ) from error


def _hear_ctrl_c() -> None:
    """Workers die of it without a word; the parent tells it."""
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
    except OSError:  # gone since it was listed: reading it will say so
        return 0
