"""Gets NVIDIA's CUDA archives from the folder or server in TORCHKILN_CUDA_ARCHIVES, and verifies them.

The hashes are in the lock, so a mirror need not be trusted.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.errors import BadArchive, BadWheel, BuildFailed, ConfigError
from torchkiln.index.settings import index_settings, with_address
from torchkiln.index.verified import fetch_verified, verify
from torchkiln.model.lock import LockedArchive
from torchkiln.model.progress import Transfer

if TYPE_CHECKING:
    from torchkiln.index.download import DirectDownloads

VARIABLE = "TORCHKILN_CUDA_ARCHIVES"
_HOW = (
    f"set {VARIABLE} to https://developer.download.nvidia.com/compute/cuda/redist, to a mirror of it"
    " (the part before cuda_nvcc/), or to a local folder with the files"
)


@contextmanager
def _described(archive: LockedArchive) -> Iterator[None]:
    """Add *archive*, and how to set its location, to an error."""
    try:
        yield
    except BadWheel as error:
        raise BadArchive(archive.filename, error.reason) from None
    except BuildFailed as error:
        raise BuildFailed(
            f"{archive.path} (sha256 {archive.sha256}): {error.message}", hint=f"{_HOW}. {error.hint}"
        ) from error


class CudaArchives:
    """The archives at the URL or in the folder that *environ* names; thread-safe."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._location = environ.get(VARIABLE, "")
        self._mirror: DirectDownloads[LockedArchive] | None = None
        self._opening = threading.Lock()

    def require(self, archives: Collection[LockedArchive]) -> None:
        """Check that the source of *archives* is configured.

        :raises BuildFailed: the variable is not set.
        :raises ConfigError: the variable is neither a URL nor a folder.
        """
        if archives and not self._location:
            first, *more = sorted(archives, key=lambda archive: archive.component)
            others = f" and {len(more)} more archives" if more else ""
            raise BuildFailed(
                f"{VARIABLE} is not set; the build needs {first.path} (sha256 {first.sha256}){others}"
                f" of NVIDIA's CUDA toolkit, {sum(archive.size for archive in archives) / 1e9:.2f} GB",
                hint=_HOW,
            )
        if archives and self._remote:
            self._open_mirror()
        elif archives and not Path(self._location).is_dir():
            raise ConfigError(f"{VARIABLE}: {self._location}: neither a folder nor a URL", hint=_HOW)

    def demand_reachable(self, archives: Collection[LockedArchive]) -> None:
        """Request the last byte of the smallest of *archives*; if they are in a folder, look for all of them.

        :raises BuildFailed: the server cannot be reached, or a file is not found.
        """
        self.require(archives)
        for archive in sorted(archives, key=lambda archive: archive.size)[: 1 if self._remote else None]:
            with _described(archive):
                if self._remote:
                    self._open_mirror().tail(archive, 1)
                else:
                    self._in_folder(archive)

    @property
    def _remote(self) -> bool:
        return "://" in self._location

    def archive(self, archive: LockedArchive, part: Path, transfer: Transfer) -> Path | None:
        """The file in the user's folder, or *part*, to which it is downloaded (with resume); None: cancelled.

        :raises BadArchive: size or SHA-256 differ from the lock; a download is deleted.
        :raises BuildFailed: the file is not found, or the download failed.
        :raises ConfigError: the variable is neither a URL nor a folder.
        """
        self.require((archive,))
        with _described(archive):
            if self._remote:
                fetch = self._open_mirror().fetch
                complete = fetch_verified(fetch, archive, part, transfer)
                return part if complete else None
            found = self._in_folder(archive)
            verify(archive, found)
            transfer.advanced(archive.size)
            return found

    def _in_folder(self, archive: LockedArchive) -> Path:
        """The file in NVIDIA's layout below the folder, or directly in it."""
        folder = Path(self._location)
        for path in (folder / archive.path, folder / archive.filename):
            if path.is_file():
                return path
        raise BuildFailed(f"not found in {folder}", hint="")

    def _open_mirror(self) -> DirectDownloads[LockedArchive]:
        # slow to import, and most builds need no server
        from torchkiln.index.download import DirectDownloads
        from torchkiln.index.session import IndexSession

        with self._opening:
            if self._mirror is None:
                settings, address = with_address(index_settings(self._environ), self._location, VARIABLE)
                session = IndexSession(settings)
                self._mirror = DirectDownloads(session, lambda archive: f"{address}/{archive.path}")
            return self._mirror
