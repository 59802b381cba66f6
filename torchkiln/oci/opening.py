"""A layer's blob → its tar as a stream, whichever way it is compressed: the first bytes tell.

Engines do the same, whatever the manifest calls it; whoever reads compares the diff_id.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

from torchkiln.oci.gunzip import open_gzip, open_gzip_ahead

GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def open_layer(blob: Path, *, ahead: bool = False) -> BinaryIO:
    """The tar in *blob*. Reading raises OSError, EOFError or ValueError where it is damaged.

    :param ahead: a thread of its own inflates gzip ahead of the reader; zstd is fast enough without.
    """
    with blob.open("rb") as file:
        head = file.read(len(ZSTD_MAGIC))
    if ahead and head.startswith(GZIP_MAGIC):
        return open_gzip_ahead(blob)
    return opened(blob, head)


def opened(blob: Path | BinaryIO, head: bytes) -> BinaryIO:
    """The tar in *blob*, which begins with *head*."""
    if head.startswith(ZSTD_MAGIC):
        from torchkiln.oci.zstd import open_zstd  # only here: few layers want it

        return open_zstd(blob)
    if head.startswith(GZIP_MAGIC):
        return open_gzip(blob)
    return blob.open("rb") if isinstance(blob, Path) else blob


def bounded(stream: BinaryIO, limit: int, over: Callable[[], Exception]) -> BinaryIO:
    """*stream*, to be read alone; behind *limit* bytes reading raises what *over* gives."""
    return cast(BinaryIO, _Bounded(stream, limit, over))


class _Bounded:
    def __init__(self, stream: BinaryIO, limit: int, over: Callable[[], Exception]) -> None:
        self._stream, self._left, self._over = stream, limit, over

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise self._over()
        return data
