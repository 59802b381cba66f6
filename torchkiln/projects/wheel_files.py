"""Downloads the wheels of a project that are not from an index: from its folder or by URL."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from torchkiln.errors import BadWheel, BuildFailed
from torchkiln.index.download import Downloads
from torchkiln.index.pages import Pages
from torchkiln.index.settings import redact
from torchkiln.model.cell import Source
from torchkiln.model.index import FileAt, LocalWheel
from torchkiln.model.lock import LockedWheel
from torchkiln.model.project import Origin, ProjectLock
from torchkiln.projects.asked import Asked, FolderWheel
from torchkiln.projects.files import target_inside
from torchkiln.projects.own_wheels import digest_of, local_wheel
from torchkiln.util.wheel_names import parse_wheel_filename
from torchkiln.wheel.metadata import metadata_in


class OwnDownloads(Downloads):
    """Downloads the wheels of the project in *folder* that are not from an index, by their origins."""

    def __init__(self, pages: Pages, folder: Path, origins: Iterable[Origin]) -> None:
        super().__init__(pages)
        self._folder, self._origins = folder, {origin.name: origin for origin in origins}

    def _locate(self, file: LockedWheel, *, fresh: bool) -> FileAt:
        origin = self._origins[file.name]
        url = origin.url or self._checked(file, origin).as_uri()
        return FileAt(filename=file.filename, url=url, size=file.size, sha256=file.sha256)

    def _checked(self, file: LockedWheel, origin: Origin) -> Path:
        """The file in the project's folder; the caller compares the sha256 of the bytes that it reads again.

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
    """Put the wheels of *lock* that are not from an index into the cache: their files may vanish later.

    :raises BuildFailed: a file differs from the lock.
    """
    downloads = OwnDownloads(pages, folder, lock.origins)
    for wheel in lock.wheels:
        if wheel.index is Source.PROJECT:
            downloads.fetch_wheel(wheel, pages.store)


def wheel_by_url(asked: Asked, folder: Path, pages: Pages) -> LocalWheel:
    """The wheel that *asked* requires by URL, which is now in the cache.

    :raises BuildFailed: the file cannot be read, or has another sha256, name or version.
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
    with suppress(FileExistsError):  # also under the lock's name, so that the build does not download it
        os.link(path, pages.store.wheel(replace(wheel, filename=own.filename)))
    return own
