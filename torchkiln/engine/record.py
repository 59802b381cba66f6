"""Records in a lock the layers that were built from it; later builds must produce the same layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from torchkiln.engine.known import known_layers
from torchkiln.locks.lock import load_locked, save
from torchkiln.plan.layers import made_layers
from torchkiln.store.store import Store


def record_layers(images: Path, tag: str, store: Store) -> Literal["recorded", "already", "not built"]:
    """Write the digests of the layers in *store* to the lock of *tag*; return the outcome.

    :raises Stale: there is no valid lock.
    """
    locked = load_locked(images, tag)
    layers = known_layers(locked, store)
    if layers is None:
        recorded = {layer.title for layer in locked.layers}
        return "already" if all(spec.title in recorded for spec in made_layers(locked)) else "not built"
    save(images, replace(locked, layers=layers))
    return "recorded"
