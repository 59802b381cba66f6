"""Keeps the indexes of layers in the cache, signed by this machine's key.

A program that can change an unpacked image can also change a list of its files: an unsigned list is ignored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from torchkiln.attest.machine_key import signed, verified
from torchkiln.model.digest import Digest
from torchkiln.oci.layer_index import LayerIndex, TreeItem, decoded, encoded, joined
from torchkiln.oci.unpack import LayerBlob, layer_index
from torchkiln.store.store import Store

RECORDS = "contents"
_TYPE = "application/vnd.torchkiln.layer-index"  # payload type
_HEAD = 71 + 2  # bytes of a diff_id, a format number and a line feed, which precede the index
_FORM = "1"


def keep_index(store: Store, diff_id: Digest, index: LayerIndex) -> None:
    """Store the *index* of the layer *diff_id*."""
    payload = f"{diff_id}{_FORM}\n".encode() + encoded(index)
    store.put_record(RECORDS, _key(diff_id), signed(store, _TYPE, payload))


def kept_index(store: Store, diff_id: Digest) -> LayerIndex | None:
    """The index of the layer *diff_id*; None if there is none that this machine's key signed."""
    record = store.record(RECORDS, _key(diff_id))
    payload = verified(store, _TYPE, record, where=f"index of {diff_id}") if record else None
    if payload is None or payload[:_HEAD] != f"{diff_id}{_FORM}\n".encode():
        return None
    store.touch(store.root / "records" / RECORDS / f"{_key(diff_id)}.json")
    return decoded(payload[_HEAD:])


def kept_tree(store: Store, layers: Sequence[LayerBlob]) -> Mapping[str, TreeItem] | None:
    """The tree of an image with these *layers*; None if an index is missing."""
    indexes = [kept_index(store, layer.diff_id) for layer in layers]
    found = [index for index in indexes if index is not None]
    return joined(found) if len(found) == len(indexes) else None


def tree_of(store: Store, layers: Sequence[LayerBlob]) -> Mapping[str, TreeItem]:
    """The tree of an image; layers without an index are read, in parallel.

    :raises VerificationFailed: a layer is damaged.
    """
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return joined(list(pool.map(lambda layer: index_of(store, layer), layers)))


def index_of(store: Store, layer: LayerBlob) -> LayerIndex:
    """The index of *layer*, which is read if there is none that this machine's key signed.

    :raises VerificationFailed: *layer* is damaged.
    """
    found = kept_index(store, layer.diff_id)
    if found is None:
        found = layer_index(layer)
        keep_index(store, layer.diff_id, found)
    return found


def _key(diff_id: Digest) -> str:
    return diff_id.removeprefix("sha256:")
