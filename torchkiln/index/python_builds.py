"""Downloads the archive of a standalone Python from the URL that the matrix names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchkiln.errors import BuildFailed
from torchkiln.index.download import DirectDownloads
from torchkiln.index.pages import Pages
from torchkiln.index.settings import index_settings, redact, with_address
from torchkiln.model.cell import PythonArchive
from torchkiln.model.index import FileAt
from torchkiln.store.store import Store

_MOST = 1 << 30  # bytes; real archives have 20 to 120 million


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sized:
    """An archive, and its size on the server, because the matrix does not state the size."""

    filename: str
    sha256: str
    size: int


def download(
    archive: PythonArchive,
    url: str,
    path: Path,
    store: Store,
    *,
    environ: Mapping[str, str],
    began: Callable[[int], None],
    on_progress: Callable[[int], None],
) -> None:
    """Download *archive* from *url* to *path*; the caller verifies its hash.

    :param began: called with the number of bytes.
    :raises BuildFailed: the server cannot be reached, does not have the file, or has a much too large one.
    """
    settings, address = with_address(index_settings(environ), url, "archive")
    pages = Pages(settings, store)
    at = FileAt(filename=archive.filename, url=address, size=None, sha256=archive.sha256)
    size = pages.measure(at).size or 0
    file = _Sized(filename=archive.filename, sha256=archive.sha256, size=size)
    if size > _MOST:
        raise BuildFailed(
            f"{redact(address)}: too large for an archive of a Python: {size} bytes, limit {_MOST >> 20} MiB",
            hint="correct the URL in matrix.yaml, under pythons",
        )
    began(size)
    source: DirectDownloads[_Sized] = DirectDownloads(pages.session, lambda _: address)
    source.fetch(file, path, on_progress=on_progress, cancelled=lambda: False)
