"""Fetches the wheels of a project: those that no index has from its folder, by URL, or from sdists."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.utils import parse_wheel_filename

from torchkiln.errors import BadWheel, BuildFailed
from torchkiln.index.download import Downloads
from torchkiln.index.pages import Pages
from torchkiln.index.settings import index_settings, redact
from torchkiln.model.cell import Source
from torchkiln.model.index import FileAt, LocalWheel
from torchkiln.model.lock import LockedWheel
from torchkiln.model.progress import Fetcher
from torchkiln.model.project import Origin, ProjectLock
from torchkiln.project.asked import Asked, FolderWheel
from torchkiln.project.files import target_inside
from torchkiln.project.own_wheels import digest_of, local_wheel
from torchkiln.store.store import Store
from torchkiln.wheel.metadata import metadata_in


class OwnDownloads(Downloads):
    """Downloads wheels that no index has, of the project in *folder*, by their origins."""

    def __init__(self, pages: Pages, folder: Path, origins: Iterable[Origin]) -> None:
        super().__init__(pages)
        self._folder, self._origins = folder, {origin.name: origin for origin in origins}

    def _locate(self, file: LockedWheel, *, fresh: bool) -> FileAt:
        origin = self._origins[file.name]
        url = origin.url or self._checked(file, origin).as_uri()
        return FileAt(filename=file.filename, url=url, size=file.size, sha256=file.sha256)

    def _checked(self, file: LockedWheel, origin: Origin) -> Path:
        """The file in the project's folder; its reader compares the sha256 again.

        :raises BuildFailed: it is missing, or has another sha256.
        """
        try:
            path = target_inside(self._folder, self._folder / origin.path)
            sha256, _ = digest_of(path, self.pages.store)
        except (ValueError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise BuildFailed(
                f"{self._folder / origin.path}: {why}, and the cache does not have this wheel"
                f" (sha256 {file.sha256})",
                hint="put the file back (git checkout, git lfs pull), or lock the project again",
            ) from None
        if sha256 != file.sha256:
            raise BuildFailed(
                f"{self._folder / origin.path}: checksum mismatch: sha256 {sha256} in the folder,"
                f" {file.sha256} in the lock",
                hint="put the locked file back, or lock the project again",
            )
        return path


def keep_own_wheels(lock: ProjectLock, folder: Path, pages: Pages) -> None:
    """Put the wheels of *lock* that no index has into the cache: their files may be gone later.

    :raises BuildFailed: a file is not the locked one any more.
    """
    downloads = OwnDownloads(pages, folder, lock.origins)
    for wheel in lock.wheels:
        if wheel.index is Source.PROJECT:
            downloads.fetch_wheel(wheel, pages.store)


def wheel_by_url(asked: Asked, folder: Path, pages: Pages) -> LocalWheel:
    """The wheel that *asked* requires by URL, which is now in the cache.

    :raises BuildFailed: it cannot be read, or has another sha256, name or version.
    """
    (sha256,) = {*asked.hashes}
    filename = unquote(urlsplit(asked.url).path).rpartition("/")[2]
    version = str(parse_wheel_filename(filename)[1])
    measured = pages.measure(FileAt(filename=filename, url=asked.url, size=None, sha256=sha256))
    wheel = LockedWheel(
        name=asked.name,
        version=version,
        filename=filename,
        sha256=sha256,
        size=measured.size or 0,
        index=Source.PROJECT,
    )
    try:
        origin = Origin(name=asked.name, url=asked.url)
        path = OwnDownloads(pages, folder, (origin,)).fetch_wheel(wheel, pages.store)
        found = FolderWheel(path=filename, name=wheel.name, version=version, sha256=sha256, size=wheel.size)
        own = local_wheel(found, metadata_in(path, filename), only=True)
    except (BadWheel, ValueError) as error:
        why = error.reason if isinstance(error, BadWheel) else str(error)
        raise BuildFailed(
            f"{asked.where}: {redact(asked.url)}: {why}",
            hint="compare the URL and the sha256 with what the project publishes",
        ) from error
    with suppress(FileExistsError):  # under the name in the lock, so that it is downloaded once
        os.link(path, pages.store.wheel(replace(wheel, filename=own.filename)))
    return own


#: Builds the wheel of an origin again; returns its path in the cache: see `build.rebuilt`.
Rebuild = Callable[[LockedWheel, Origin], Path]


class ProjectWheels:
    """A Fetcher for the wheels of the project in *folder*; *indexes* fetches those that an index has."""

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
        self._own: OwnDownloads | None = None  # opened when it is needed: this runs pip
        self._opening = threading.Lock()
        self._building = threading.Lock()  # one build at a time: each may use gigabytes

    def size(self, wheel: LockedWheel) -> int:
        """See Fetcher."""
        return self._of(wheel).size(wheel)

    def tail(self, wheel: LockedWheel, count: int) -> bytes | None:
        """See Fetcher; None for a wheel that has to be built."""
        return None if self._built(wheel) else self._of(wheel).tail(wheel, count)

    def fetch(
        self,
        wheel: LockedWheel,
        path: Path,
        *,
        on_progress: Callable[[int], None],
        cancelled: Callable[[], bool],
    ) -> None:
        """See Fetcher."""
        if origin := self._built(wheel):
            with self._building:
                os.replace(self._rebuild(wheel, origin), path)  # the caller adopts it, as any download
            on_progress(wheel.size)
        else:
            self._of(wheel).fetch(wheel, path, on_progress=on_progress, cancelled=cancelled)

    def _built(self, wheel: LockedWheel) -> Origin | None:
        """The origin of *wheel* if it is built from an sdist."""
        origin = self._origins.get(wheel.name) if wheel.index is Source.PROJECT else None
        return origin if origin and origin.built else None

    def _of(self, wheel: LockedWheel) -> Fetcher:
        if wheel.index is not Source.PROJECT:
            return self._indexes
        with self._opening:
            if self._own is None:
                pages = Pages(index_settings(self._environ), self._store)
                self._own = OwnDownloads(pages, self._folder, self._origins.values())
            return self._own
