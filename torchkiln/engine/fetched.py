"""Downloads a locked wheel to the store and verifies its hash."""

from __future__ import annotations

from pathlib import Path

from torchkiln.engine.environment import Environment
from torchkiln.index.verified import fetch_verified
from torchkiln.model.lock import LockedWheel
from torchkiln.util.files import private_folder


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
        fetch_verified(
            environment.fetcher.fetch,
            file,
            part,
            on_progress=lambda count: observer.advance("download", file.filename, count),
        )
        observer.end("download", file.filename)
        return store.adopt(part, store.wheel(file))
