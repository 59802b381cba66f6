"""A package index that is opened when the first wheel is needed."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.model.lock import LockedWheel
from torchkiln.model.progress import Transfer

if TYPE_CHECKING:
    from torchkiln.index.download import Downloads
    from torchkiln.store.store import Store


class LazyIndex:
    """A package index that is opened for the first wheel: most builds download none."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._opened: Downloads | None = None
        self._opening = threading.Lock()  # without it, each of a dozen threads would run pip

    def _index(self) -> Downloads:
        from torchkiln.index.download import open_downloads

        with self._opening:
            if self._opened is None:
                self._opened = open_downloads(os.environ, self._store)
            return self._opened

    def size(self, wheel: LockedWheel) -> int:
        return self._index().size(wheel)

    def tail(self, wheel: LockedWheel, count: int) -> bytes | None:
        return self._index().tail(wheel, count)

    def fetch(self, wheel: LockedWheel, path: Path, transfer: Transfer) -> None:
        self._index().fetch(wheel, path, transfer)
