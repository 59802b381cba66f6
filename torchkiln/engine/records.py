"""Reads and writes the cache's records of layers; `cache_keys.key_of` gives their keys."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchkiln.engine.cache_keys import key_of
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob
from torchkiln.model.plan import MadeLayer
from torchkiln.store.store import Store

_RECORDS = "layers"


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerRecord:
    """A layer that was made; its blob may have been pruned."""

    blob: Blob
    verified: bool  # its wheels were checked; otherwise it was compared with a lock


def record_of(layer: MadeLayer, store: Store) -> LayerRecord | None:
    """The record of *layer* in *store*, if there is one."""
    record = store.record(_RECORDS, key_of(layer))
    if record is None:
        return None
    return LayerRecord(blob=blob_of(record), verified=bool(record.get("looked_into")))


def cached_record(layer: MadeLayer, store: Store) -> LayerRecord | None:
    """The record of *layer*, if its blob is in *store*."""
    found = record_of(layer, store)
    return found if found and store.has_blob(found.blob.digest, found.blob.size) else None


def store_layer(layer: MadeLayer, blob: Blob, path: Path, store: Store, *, verified: bool = True) -> None:
    """Move the blob of *layer* from *path* into *store* and record it."""
    store.adopt(path, store.blob(blob.digest))
    store.put_record(_RECORDS, key_of(layer), {**asdict(blob), "looked_into": verified})


def blob_of(record: dict[str, Any]) -> Blob:
    """The blob in a record of the store."""
    return Blob(
        digest=Digest(record["digest"]),
        diff_id=Digest(record["diff_id"]),
        size=record["size"],
        unpacked=record["unpacked"],
    )
