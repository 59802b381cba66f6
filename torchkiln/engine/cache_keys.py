"""Computes the keys of layers in the cache, hashes of all that determines their bytes; reads their records.

The key of a wheel layer is the hash of wheels, Python and recipe; that of a toolkit layer, of archives and
the rule by which they are extracted. The key of a converted layer has the digest of the original layer and
the encoder's name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchkiln.cuda.tree import RULE
from torchkiln.model.device_code import DeviceCode
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob
from torchkiln.model.lock import LockedWheel
from torchkiln.model.plan import ArtefactLayer, MadeLayer, ToolkitLayer, WheelLayer
from torchkiln.model.recipe import PREFIX, PYTHON_RULE, RECIPE, ImagePython
from torchkiln.oci.compression import TARGETS
from torchkiln.oci.encode import ENCODER
from torchkiln.store.store import Store
from torchkiln.util import codec


def key_of(layer: MadeLayer) -> str:
    match layer:
        case WheelLayer():
            return layer_key(layer.wheels, layer.python, layer.device_code)
        case ToolkitLayer():
            return _key(
                archives=[archive.sha256 for archive in layer.archives],
                components=[archive.component for archive in layer.archives],
                home=layer.home,
                rule=RULE,
            )


def layer_name(layer: ArtefactLayer | MadeLayer) -> str:
    """The name of *layer* in a command line: 16 hex digits, the same in all images that have the layer."""
    key = layer.artefact.digest if isinstance(layer, ArtefactLayer) else key_of(layer)
    return key.removeprefix("sha256:")[:16]


def layer_key(
    wheels: Iterable[LockedWheel], python: ImagePython, device_code: DeviceCode | None = None
) -> str:
    """The key of a wheel layer, or of the byte-code of one wheel."""
    more = {"device_code": codec.plain(device_code)} if device_code else {}
    if python.of_another:
        more["another"] = {"folder": python.folder, "rule": PYTHON_RULE}
    return _key(wheels=[wheel.sha256 for wheel in wheels], python=python.version, prefix=PREFIX, **more)


def _key(**inputs: Any) -> str:
    whole = {**inputs, "recipe": RECIPE, "encoder": ENCODER}
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


FORMAT_RECORDS = tuple(TARGETS)
"""The kinds of records of converted layers."""

FORMER_RECORDS = "joined"
"""Records of layers with one gzip member, which earlier versions wrote; no longer used."""


def format_key(layer: Digest, encoder: str) -> str:
    """The key of *layer* converted by *encoder*."""
    return f"{layer.removeprefix('sha256:')}-{encoder}"


def source_of(key: str) -> str:
    """The hex digest of the original layer in a `format_key`."""
    return key.partition("-")[0]


_RECORDS = "layers"


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerRecord:
    """A layer that was made; its blob may have been pruned."""

    blob: Blob
    verified: bool  # its wheels were checked; otherwise it was compared with a lock


def record_of(layer: MadeLayer, store: Store) -> LayerRecord | None:
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
    return Blob(
        digest=Digest(record["digest"]),
        diff_id=Digest(record["diff_id"]),
        size=record["size"],
        unpacked=record["unpacked"],
    )
