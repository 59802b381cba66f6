"""tar+gzip file → its tar as a stream; any number of gzip members."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, cast

from isal import igzip


def open_gzip(blob: Path) -> BinaryIO:
    """*blob* inflated while it is read, ~0.5 GB/s. Reading raises OSError or EOFError where it is damaged."""
    return cast(BinaryIO, igzip.IGzipFile(str(blob), "rb"))  # type: ignore[no-untyped-call]
