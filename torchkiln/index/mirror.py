"""A mirror of NVIDIA's archives, from which they are fetched."""

from __future__ import annotations

from torchkiln.index.download import Fetching
from torchkiln.index.session import Session
from torchkiln.index.settings import IndexSettings
from torchkiln.model.index import FileAt
from torchkiln.model.lock import LockedArchive


class Mirror(Fetching[LockedArchive]):
    """A server in NVIDIA's layout: where a file lies follows from its path."""

    def __init__(self, settings: IndexSettings, address: str) -> None:
        super().__init__(Session(settings))
        self._address = address

    def _place(self, wheel: LockedArchive, *, fresh: bool) -> FileAt:
        return FileAt(
            filename=wheel.filename,
            url=f"{self._address}/{wheel.path}",
            size=wheel.size,
            sha256=wheel.sha256,
        )
