"""A layer's blob → its tar as a stream, whichever way it is compressed: the first bytes tell.

Engines do the same, whatever the manifest calls it; whoever reads compares the diff_id.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import BinaryIO, cast

from torchkiln.oci.gunzip import open_gzip, open_gzip_ahead
from torchkiln.oci.tar_reader import RATIO, most_unpacked

GZIP_MAGIC, ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def open_layer(blob: Path, *, ahead: bool = False) -> BinaryIO:
    """The tar in *blob*. Reading raises ValueError with a sentence where it is damaged or much too large.

    :param ahead: a thread of its own inflates gzip ahead of the reader; zstd is fast enough without.
    :raises OSError: it is not there.
    :raises ValueError: it is damaged at its beginning.
    """
    with blob.open("rb") as file:
        head = file.read(len(ZSTD_MAGIC))
    try:
        stream = open_gzip_ahead(blob) if ahead and head.startswith(GZIP_MAGIC) else opened(blob, head)
    except EOFError as error:
        raise ValueError(f"is damaged: {error}") from error
    return cast(BinaryIO, _Bounded(stream, most_unpacked(blob.stat().st_size)))


def opened(blob: Path | BinaryIO, head: bytes) -> BinaryIO:
    """The tar in *blob*, which begins with *head*; as long as it may be."""
    if head.startswith(ZSTD_MAGIC):
        from torchkiln.oci.zstd import open_zstd  # only here: few layers want it

        return open_zstd(blob)
    if head.startswith(GZIP_MAGIC):
        return open_gzip(blob)
    return blob.open("rb") if isinstance(blob, Path) else blob


class _Bounded:
    """A stream that is read at most *most* bytes of."""

    def __init__(self, stream: BinaryIO, most: int) -> None:
        self._stream, self._most, self._count = stream, most, 0

    def read(self, size: int = -1, /) -> bytes:
        """As a file."""
        try:
            data = self._stream.read(size)
        except (OSError, EOFError, ValueError) as error:
            raise ValueError(f"is damaged: {error}") from error
        self._count += len(data)
        if self._count > self._most:
            raise ValueError(f"unpacks to more than {self._most} bytes, {RATIO} times its size")
        return data

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> _Bounded:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
