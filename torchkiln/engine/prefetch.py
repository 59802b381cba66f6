"""Downloads wheels: one, or many while base and tools are built; and gets unknown sizes from the index."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from torchkiln.engine.cache_keys import record_of
from torchkiln.engine.environment import Environment
from torchkiln.errors import BuildFailed, NotListed
from torchkiln.index.verified import fetch_verified
from torchkiln.model.cell import Source
from torchkiln.model.lock import LockedWheel
from torchkiln.model.plan import ImagePlan, WheelLayer
from torchkiln.model.progress import Fetcher, Transfer
from torchkiln.store.store import Store
from torchkiln.util.files import private_folder
from torchkiln.util.sizes import size
from torchkiln.wheel.source import Cancelled

_STREAMS = 6
_NAMED = 10  # wheels in a message


def missing_wheels(plan: ImagePlan, store: Store) -> tuple[LockedWheel, ...]:
    """The wheels of known size that are neither in *store* nor in a cached layer."""
    return tuple(wheel for wheel in _missing(plan, store) if wheel.size)


def _missing(plan: ImagePlan, store: Store) -> Iterator[LockedWheel]:
    layers = (layer for layer in plan.made if record_of(layer, store) is None)
    wheels = (source for layer in layers for source in layer.inputs if isinstance(source, LockedWheel))
    return (wheel for wheel in wheels if not store.has_wheel(wheel))


def demand_space(plan: ImagePlan, store: Store) -> None:
    """:raises BuildFailed: the disk has no room for the missing wheels and the layers made of wheels."""
    missing = [(wheel, store.part(wheel)) for wheel in _missing(plan, store)]
    need = sum(wheel.size - (part.stat().st_size if part.exists() else 0) for wheel, part in missing)
    if not plan.locked.device_code:  # a layer is as large as its wheels
        need += sum(layer.size or 0 for layer in plan.of(WheelLayer) if record_of(layer, store) is None)
    free = shutil.disk_usage(next(each for each in (store.root, *store.root.parents) if each.exists())).free
    if need > free:
        raise BuildFailed(
            f"the cache {store.root}: No space left on device: {size(free)} free, {size(need)} needed",
            hint="free space (torchkiln cache prune), or set TORCHKILN_CACHE to a folder on another disk",
        )


def demand_reachable(plan: ImagePlan, store: Store, fetcher: Fetcher) -> None:
    """Request the last byte of the smallest missing wheel of each index; do nothing if no wheel is missing.

    An unreachable index is thus reported before the base is built, which takes minutes.

    :raises BuildFailed: an index cannot be reached, or no longer has the file.
    """
    probes: dict[Source, LockedWheel] = {}
    for wheel in sorted(_missing(plan, store), key=lambda wheel: wheel.size):
        probes.setdefault(wheel.index, wheel)
    for wheel in probes.values():
        if wheel.size:
            fetcher.tail(wheel, 1)
        else:
            fetcher.size(wheel)


def all_missing(plan: ImagePlan, store: Store, fetcher: Fetcher, first: NotListed) -> NotListed:
    """The error for all wheels of *plan* that no source has; *first* is that for one of them."""

    def reason(wheel: LockedWheel) -> str:
        try:
            fetcher.tail(wheel, 1) if wheel.size else fetcher.size(wheel)
        except NotListed as error:
            return error.message
        except BuildFailed:  # it could be there
            pass
        return ""

    wheels = list(_missing(plan, store))
    with ThreadPoolExecutor(_STREAMS) as pool:
        reasons = [text for text in pool.map(reason, wheels) if text]
    if len(reasons) < 2:
        return first
    head = f"{len(reasons)} of {len(wheels)} wheels were not found"
    more = [f"and {len(reasons) - _NAMED} more"] if reasons[_NAMED:] else []
    return NotListed("\n".join((head, *reasons[:_NAMED], *more)), hint=first.hint)


def fetched(file: LockedWheel, environment: Environment) -> Path:
    """The path of *file* in the store, downloaded and verified if it is missing.

    :raises BuildFailed: the downloaded file is not the locked wheel, or it cannot be downloaded.
    """
    store, observer = environment.store, environment.observer
    with store.lock(f"wheel-{file.sha256}", f"fetches {file.filename}"):
        if store.has_wheel(file):
            return store.wheel(file)
        part = store.part(file)
        private_folder(part.parent)
        observer.begin("download", file.filename, file.size)
        advanced = partial(observer.advance, "download", file.filename)
        fetch_verified(environment.fetcher.fetch, file, part, Transfer(advanced))
        observer.end("download", file.filename)
        return store.adopt(part, store.wheel(file))


@contextmanager
def fetching(wheels: Iterable[LockedWheel], store: Store, fetcher: Fetcher) -> Iterator[None]:
    """Download *wheels*, the largest first, until the context ends; the build resumes unfinished downloads.

    This function verifies no file and reports no error: the build does both.
    """
    cancelled = threading.Event()

    def check() -> None:
        if cancelled.is_set():
            raise Cancelled

    def fetch(wheel: LockedWheel) -> None:
        with store.lock(f"wheel-{wheel.sha256}", f"fetches {wheel.filename}", check=check):
            check()
            if not store.has_wheel(wheel):
                part = store.part(wheel)
                private_folder(part.parent)
                fetcher.fetch(wheel, part, Transfer(cancelled=cancelled.is_set))

    with ThreadPoolExecutor(_STREAMS, "prefetch") as pool:
        for wheel in sorted(wheels, key=lambda wheel: -wheel.size):
            pool.submit(fetch, wheel)
        try:
            yield
        finally:
            cancelled.set()
            pool.shutdown(cancel_futures=True)


def measured(plan: ImagePlan, store: Store, fetcher: Fetcher) -> ImagePlan:
    """*plan* with the size of every wheel; its lock and digest do not change.

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
