"""Fetches a project's wheels: from an index, a vault, its folder or a URL; or builds them from sdists."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.index.lazy import LazyIndex
from torchkiln.model.cell import Source
from torchkiln.model.lock import LockedWheel
from torchkiln.model.progress import Fetcher, Transfer
from torchkiln.model.project import Origin
from torchkiln.store.store import Store

if TYPE_CHECKING:
    from torchkiln.index.download import Downloads

#: Builds the wheel of an origin again; returns its path in the cache: see `build.rebuilt`.
Rebuild = Callable[[LockedWheel, Origin], Path]


class ProjectWheels:
    """A Fetcher for the wheels of a project: *indexes* fetches the wheels of indexes, *own* the others."""

    def __init__(self, indexes: Fetcher, own: Fetcher) -> None:
        self._indexes, self._own = indexes, own

    def size(self, wheel: LockedWheel) -> int:
        """See Fetcher."""
        return self._of(wheel).size(wheel)

    def tail(self, wheel: LockedWheel, count: int) -> bytes | None:
        """See Fetcher."""
        return self._of(wheel).tail(wheel, count)

    def fetch(self, wheel: LockedWheel, path: Path, transfer: Transfer) -> None:
        """See Fetcher."""
        self._of(wheel).fetch(wheel, path, transfer)

    def _of(self, wheel: LockedWheel) -> Fetcher:
        return self._own if wheel.index is Source.PROJECT else self._indexes


class OwnWheels(LazyIndex):
    """A Fetcher for the wheels that no index has: from the project's *folder*, by URL, or built."""

    def __init__(
        self,
        folder: Path,
        origins: Iterable[Origin],
        store: Store,
        environ: Mapping[str, str],
        rebuild: Rebuild,
    ) -> None:
        super().__init__(store)
        self._folder, self._origins = folder, {one.name: one for one in origins}
        self._environ, self._rebuild = environ, rebuild
        self._building = threading.Lock()  # one build at a time: each may use gigabytes

    def tail(self, wheel: LockedWheel, count: int) -> bytes | None:
        """See Fetcher; None for a wheel that has to be built."""
        return None if self._origins[wheel.name].built else super().tail(wheel, count)

    def fetch(self, wheel: LockedWheel, path: Path, transfer: Transfer) -> None:
        """See Fetcher."""
        origin = self._origins[wheel.name]
        if origin.built:
            with self._building:
                os.replace(self._rebuild(wheel, origin), path)  # the caller moves it into the cache
            transfer.advanced(wheel.size)
        else:
            super().fetch(wheel, path, transfer)

    def _index(self) -> Downloads:
        from torchkiln.index.pages import Pages  # imported here because they load slowly
        from torchkiln.index.settings import index_settings
        from torchkiln.projects.wheel_files import OwnDownloads

        with self._opening:
            if self._opened is None:
                pages = Pages(index_settings(self._environ), self._store)
                self._opened = OwnDownloads(pages, self._folder, self._origins.values())
            return self._opened
