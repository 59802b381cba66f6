"""LockedArchive -> its file, verified: from a folder of the user's, or from a server in NVIDIA's layout.

Which, TORCHKILN_CUDA_ARCHIVES says; no address stands in torchkiln. The hashes are the lock's, so a mirror
need not be trusted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.errors import BadArchive, BadWheel, BuildFailed, ConfigError
from torchkiln.index.settings import index_settings, with_address
from torchkiln.index.verified import fetch_verified, verify
from torchkiln.model.lock import LockedArchive

if TYPE_CHECKING:
    from torchkiln.index.mirror import Mirror

VARIABLE = "TORCHKILN_CUDA_ARCHIVES"
_HOW = (
    f"set {VARIABLE} to the address of NVIDIA's redist layout, or of a mirror of it (what stands before"
    " cuda_nvcc/), or to a folder with the files"
)


class CudaArchives:
    """The archives where *environ* says that they are; safe to use from several threads."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._place = environ.get(VARIABLE, "")
        self._mirror: Mirror | None = None
        self._opening = threading.Lock()

    def require(self, archives: Collection[LockedArchive]) -> None:
        """See that there is a place to ask.

        :raises BuildFailed: nobody said where *archives* are; tells the first, and how many.
        :raises ConfigError: what was said is neither an address nor a folder.
        """
        if archives and not self._place:
            first, *more = sorted(archives, key=lambda one: one.component)
            others = f" and {len(more)} more archives" if more else ""
            raise BuildFailed(
                f"{first.path} (sha256 {first.sha256}){others} of NVIDIA's CUDA toolkit are wanted,"
                f" {sum(one.size for one in archives) / 1e9:.2f} GB, and {VARIABLE} is not set",
                hint=_HOW,
            )
        if archives and "://" in self._place:
            self._opened()
        elif archives and not Path(self._place).is_dir():
            raise ConfigError(f"{VARIABLE}: {self._place}: no such folder, and no address", hint=_HOW)

    def archive(
        self,
        archive: LockedArchive,
        part: Path,
        *,
        on_progress: Callable[[int], None],
        cancelled: Callable[[], bool],
    ) -> Path | None:
        """The file: fetched to *part*, going on from what is there, or the user's own; None: cancelled.

        :raises BadArchive: it is not the locked one; of what was fetched nothing is kept.
        :raises BuildFailed: it is not to be had; names it, and how to.
        :raises ConfigError: the variable holds neither an address nor a folder.
        """
        self.require((archive,))
        try:
            if "://" in self._place:
                fetch = self._opened().fetch
                there = fetch_verified(fetch, archive, part, on_progress=on_progress, cancelled=cancelled)
                return part if there else None
            found = self._in_folder(archive)
            verify(archive, found)
            on_progress(archive.size)
            return found
        except BadWheel as error:
            raise BadArchive(archive.filename, error.reason) from None
        except BuildFailed as error:
            raise BuildFailed(
                f"{archive.path} (sha256 {archive.sha256}): {error.message}",
                hint=f"{_HOW}. {error.hint}",
            ) from error

    def _in_folder(self, archive: LockedArchive) -> Path:
        """In NVIDIA's layout below the folder, or lying flat in it."""
        folder = Path(self._place)
        for path in (folder / archive.path, folder / archive.filename):
            if path.is_file():
                return path
        raise BuildFailed(f"not in {folder}", hint="")

    def _opened(self) -> Mirror:
        from torchkiln.index.mirror import Mirror  # only here: most builds ask no server

        with self._opening:
            if self._mirror is None:
                settings, address = with_address(index_settings(self._environ), self._place, VARIABLE)
                self._mirror = Mirror(settings, address)
            return self._mirror
