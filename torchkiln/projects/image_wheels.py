"""Offers the wheels of an image to a resolver, without a request to an index."""

from __future__ import annotations

from functools import partial

from torchkiln.model.index import LocalWheel
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.store.store import Store
from torchkiln.wheel.metadata import metadata_in


def wheels_of_image(image: LockedCell, store: Store) -> tuple[LocalWheel, ...]:
    """The wheels of *image*, each as the only candidate of its package; () if *store* lacks any of them."""
    if not all(map(store.has_wheel, image.wheels)):
        return ()
    return tuple(
        LocalWheel(
            name=wheel.name,
            version=wheel.version,
            filename=wheel.filename,
            sha256=wheel.sha256,
            size=wheel.size,
            requires_python="",  # not checked: the image has the wheel already
            metadata=partial(_metadata, wheel, store),
            only=True,
        )
        for wheel in image.wheels
    )


def _metadata(wheel: LockedWheel, store: Store) -> bytes:
    return metadata_in(store.wheel(wheel), wheel.filename)
