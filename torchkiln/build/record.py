"""The layers that this machine built from a lock → the lock, with their digests; builds then hold to them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from torchkiln.build.known import known_layers
from torchkiln.lock.lock import load_locked, save
from torchkiln.store.store import Store


def record_layers(images: Path, tag: str, store: Store) -> Literal["recorded", "already", "not built"]:
    """Write the digests of the layers in *store* into the lock of *tag*; what became of it.

    :raises Stale: there is no sound lock.
    """
    locked = load_locked(images, tag)
    layers = known_layers(locked, store)
    if layers is None:
        return "already" if locked.layers else "not built"
    save(images, replace(locked, layers=layers))
    return "recorded"
