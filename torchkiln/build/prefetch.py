"""Wheels on their way into the cache while something else is made that a build has to wait for.

A plan -> the same with every wheel's size: what a lock by public record leaves out, the index tells.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from torchkiln.build.records import record_of
from torchkiln.model.lock import LockedWheel
from torchkiln.model.plan import ImagePlan, WheelLayer
from torchkiln.model.progress import Fetcher
from torchkiln.store.store import Store
from torchkiln.util.files import private_folder
from torchkiln.wheel.source import Cancelled

_STREAMS = 6


def unfetched(plan: ImagePlan, store: Store) -> tuple[LockedWheel, ...]:
    """The wheels that are neither in *store* nor in a layer there; but for those whose size nobody told."""
    layers = (layer for layer in plan.made if record_of(layer, store) is None)
    wheels = (one for layer in layers for one in layer.inputs if isinstance(one, LockedWheel))
    return tuple(wheel for wheel in wheels if wheel.size and not store.has_wheel(wheel))


@contextmanager
def fetching(wheels: Iterable[LockedWheel], store: Store, fetcher: Fetcher) -> Iterator[None]:
    """Fetch *wheels*, the largest first, until the context ends; what has come is gone on from.

    Nothing is verified, which is for whoever reads it; and what cannot be fetched is for the build to tell.
    """
    off = threading.Event()

    def check() -> None:
        if off.is_set():
            raise Cancelled

    def fetch(wheel: LockedWheel) -> None:
        with store.lock(f"wheel-{wheel.sha256}", f"fetches {wheel.filename}", check=check):
            check()
            if not store.has_wheel(wheel):
                part = store.part(wheel)
                private_folder(part.parent)
                fetcher.fetch(wheel, part, on_progress=lambda _: None, cancelled=off.is_set)

    with ThreadPoolExecutor(_STREAMS, "prefetch") as pool:
        for wheel in sorted(wheels, key=lambda wheel: -wheel.size):
            pool.submit(fetch, wheel)
        try:
            yield
        finally:
            off.set()
            pool.shutdown(cancel_futures=True)


def measured(plan: ImagePlan, store: Store, fetcher: Fetcher) -> ImagePlan:
    """*plan*, whose lock and digest stay as they are.

    :raises BuildFailed: the index does not have a wheel of that hash.
    """
    if all(layer.size is not None for layer in plan.layers):
        return plan
    layers = tuple(
        replace(layer, wheels=tuple(_measured(layer.wheels, store, fetcher)))
        if isinstance(layer, WheelLayer)
        else layer
        for layer in plan.layers
    )
    return replace(plan, layers=layers)


def _measured(wheels: Iterable[LockedWheel], store: Store, fetcher: Fetcher) -> Iterable[LockedWheel]:
    for wheel in wheels:
        if wheel.size:
            yield wheel
        elif store.has_wheel(wheel):
            yield replace(wheel, size=store.wheel(wheel).stat().st_size)
        else:
            yield replace(wheel, size=fetcher.size(wheel))
