"""Opens the tar in a layer blob; its first bytes say how it is compressed.

Engines do the same and ignore the media type; readers compare the diff_id.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, cast

from torchkiln.oci.compression import HEAD, of_head
from torchkiln.oci.tar_reader import RATIO, most_unpacked


def open_layer(blob: Path, *, ahead: bool = False) -> BinaryIO:
    """The tar in *blob*. Reading raises ValueError if it is damaged or much too large.

    :param ahead: a thread may decompress ahead of the reader.
    :raises OSError: it cannot be opened.
    :raises ValueError: its beginning is damaged.
    """
    with blob.open("rb") as file:
        compression = of_head(file.read(HEAD))
    try:
        stream = compression.open_ahead(blob) if ahead else compression.open(blob)
    except EOFError as error:
        raise ValueError(f"the data is damaged: {error}") from error
    limit = most_unpacked(blob.stat().st_size)
    return bounded(
        stream,
        limit,
        lambda: ValueError(f"the blob unpacks to more than {limit} bytes, {RATIO} times its size"),
    )


def bounded(stream: BinaryIO, limit: int, over: Callable[[], Exception]) -> BinaryIO:
    """*stream*, read-only; reading more than *limit* bytes raises the exception that *over* returns.

    If *stream* is damaged, reading raises ValueError.
    """
    return cast(BinaryIO, _Bounded(stream, limit, over))


class _Bounded:
    def __init__(self, stream: BinaryIO, limit: int, over: Callable[[], Exception]) -> None:
        self._stream, self._left, self._over = stream, limit, over

    def read(self, size: int = -1, /) -> bytes:
        try:
            data = self._stream.read(size)
        except (OSError, EOFError, ValueError) as error:
            raise ValueError(f"the data is damaged: {error}") from error
        self._left -= len(data)
        if self._left < 0:
            raise self._over()
        return data

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> _Bounded:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
