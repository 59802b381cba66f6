"""Fetches a project's wheels: from an index, a vault, its folder or a URL; or builds them from sdists."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.model.cell import Source
from torchkiln.model.lock import LockedWheel
from torchkiln.model.progress import Fetcher
from torchkiln.model.project import Origin
from torchkiln.store.store import Store
from torchkiln.vault import VARIABLE

if TYPE_CHECKING:
    from torchkiln.project.wheel_files import OwnDownloads

#: Builds the wheel of an origin again; returns its path in the cache: see `build.rebuilt`.
Rebuild = Callable[[LockedWheel, Origin], Path]


class ProjectWheels:
    """A Fetcher for the wheels of the project in *folder*; *indexes* fetches the wheels of indexes."""

    def __init__(
        self,
        indexes: Fetcher,
        folder: Path,
        origins: Iterable[Origin],
        store: Store,
        environ: Mapping[str, str],
        rebuild: Rebuild,
    ) -> None:
        self._indexes, self._folder, self._origins = indexes, folder, {one.name: one for one in origins}
        self._store, self._environ, self._rebuild = store, environ, rebuild
        self._own: OwnDownloads | None = None  # created when it is needed: this runs pip
        self._opening = threading.Lock()
        self._building = threading.Lock()  # one build at a time: each may use gigabytes

    def size(self, wheel: LockedWheel) -> int:
        """See Fetcher."""
        return self._of(wheel).size(wheel)

    def tail(self, wheel: LockedWheel, count: int) -> bytes | None:
        """See Fetcher; None for a wheel that has to be built, or may be in a vault."""
        own = wheel.index is Source.PROJECT
        if self._built(wheel) or (own and self._environ.get(VARIABLE)):
            return None
        return self._of(wheel).tail(wheel, count)

    def fetch(
        self,
        wheel: LockedWheel,
        path: Path,
        *,
        on_progress: Callable[[int], None],
        cancelled: Callable[[], bool],
    ) -> None:
        """See Fetcher."""
        if wheel.index is Source.PROJECT and self._from_vault(wheel, path, on_progress):
            return
        if origin := self._built(wheel):
            with self._building:
                os.replace(self._rebuild(wheel, origin), path)  # the caller moves it into the cache
            on_progress(wheel.size)
        else:
            self._of(wheel).fetch(wheel, path, on_progress=on_progress, cancelled=cancelled)

    def _from_vault(self, wheel: LockedWheel, path: Path, on_progress: Callable[[int], None]) -> bool:
        if not self._environ.get(VARIABLE):
            return False
        from torchkiln.vault.places import vaults_of  # imported here because they load slowly
        from torchkiln.vault.sources import digest_of_file, read_from

        vaults = vaults_of(self._environ)
        return read_from(vaults, digest_of_file(wheel), wheel.size, path, on_progress) is None

    def _built(self, wheel: LockedWheel) -> Origin | None:
        """The origin of *wheel* if it is built from an sdist."""
        origin = self._origins.get(wheel.name) if wheel.index is Source.PROJECT else None
        return origin if origin and origin.built else None

    def _of(self, wheel: LockedWheel) -> Fetcher:
        if wheel.index is not Source.PROJECT:
            return self._indexes
        from torchkiln.index.pages import Pages  # imported here because they load slowly
        from torchkiln.index.settings import index_settings
        from torchkiln.project.wheel_files import OwnDownloads

        with self._opening:
            if self._own is None:
                pages = Pages(index_settings(self._environ), self._store)
                self._own = OwnDownloads(pages, self._folder, self._origins.values())
            return self._own
