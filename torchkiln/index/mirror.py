"""Downloads archives from a server in NVIDIA's layout."""

from __future__ import annotations

from torchkiln.index.download import Downloader
from torchkiln.index.session import IndexSession
from torchkiln.index.settings import IndexSettings
from torchkiln.model.index import FileAt
from torchkiln.model.lock import LockedArchive


class Mirror(Downloader[LockedArchive]):
    """A server in NVIDIA's layout: the URL of a file follows from its path."""

    def __init__(self, settings: IndexSettings, address: str) -> None:
        super().__init__(IndexSession(settings))
        self._address = address

    def _locate(self, file: LockedArchive, *, fresh: bool) -> FileAt:
        return FileAt(
            filename=file.filename, url=f"{self._address}/{file.path}", size=file.size, sha256=file.sha256
        )
