"""tar+gzip file → its tar as a stream; any number of gzip members."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, cast

from isal import igzip, igzip_threaded


def open_gzip(blob: Path | BinaryIO) -> BinaryIO:
    """*blob* inflated while it is read, ~0.5 GB/s. Reading raises OSError or EOFError where it is damaged."""
    if isinstance(blob, Path):
        return cast(BinaryIO, igzip.IGzipFile(str(blob), "rb"))  # type: ignore[no-untyped-call]
    return cast(BinaryIO, igzip.IGzipFile(fileobj=blob, mode="rb"))  # type: ignore[no-untyped-call]


def open_gzip_ahead(blob: Path) -> BinaryIO:
    """`open_gzip` with a thread of its own that inflates ahead of the reader."""
    return cast(BinaryIO, igzip_threaded.open(str(blob), "rb", threads=1))  # type: ignore[no-untyped-call]
