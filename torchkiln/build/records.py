"""What the cache notes of the layers that were made, by `cache_keys.key_of`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchkiln.build.cache_keys import key_of
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob
from torchkiln.model.plan import MadeLayer
from torchkiln.store.store import Store

_RECORDS = "layers"


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A layer that was made. Its blob may have been pruned since."""

    blob: Blob
    looked_into: bool  # its wheels were read; else a lock vouched for them


def record_of(layer: MadeLayer, store: Store) -> Record | None:
    """What *store* notes of *layer*; None: it was not made here."""
    found = store.record(_RECORDS, key_of(layer))
    if found is None:
        return None
    return Record(blob=blob_of(found), looked_into=bool(found.get("looked_into")))


def there(layer: MadeLayer, store: Store) -> Record | None:
    """The same, if the blob is in *store*."""
    found = record_of(layer, store)
    return found if found and store.has_blob(found.blob.digest, found.blob.size) else None


def keep(layer: MadeLayer, blob: Blob, path: Path, store: Store, *, looked_into: bool = True) -> None:
    """Move the blob of *layer* from *path* into *store*, and note it."""
    store.adopt(path, store.blob(blob.digest))
    store.put_record(_RECORDS, key_of(layer), {**asdict(blob), "looked_into": looked_into})


def blob_of(record: dict[str, Any]) -> Blob:
    """The blob that a record of the store names."""
    return Blob(
        digest=Digest(record["digest"]),
        diff_id=Digest(record["diff_id"]),
        size=record["size"],
        unpacked=record["unpacked"],
    )
