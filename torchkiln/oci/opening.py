"""Opens the tar in a layer blob; its first bytes determine the compression.

Engines do the same and ignore the media type; readers compare the diff_id.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader, FileIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from torchkiln.errors import VerificationFailed, printable
from torchkiln.model.digest import Digest
from torchkiln.oci.compression import HEAD, of_head
from torchkiln.oci.tar_reader import RATIO, most_unpacked, pieces_of
from torchkiln.util.strict_json import open_plain

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_PIECE = 1 << 18  # bytes of one read
_HINT = "run `verify` to see every fault of the layout; then build the image again"


def open_layer(blob: Path, *, ahead: bool = False, on_read: Callable[[int], None] | None = None) -> BinaryIO:
    """The tar in *blob*. Reading raises ValueError if it is damaged or much too large.

    :param ahead: a thread may decompress ahead of the reader.
    :param on_read: called with the length of each piece of *blob* that was read; not with *ahead*.
    :raises OSError: *blob* cannot be opened.
    :raises ValueError: the beginning of *blob* is damaged.
    """
    file = open_plain(blob, follow=False)
    number = file.fileno()
    compression, limit = of_head(os.pread(number, HEAD, 0)), most_unpacked(os.fstat(number).st_size)
    source = cast(BinaryIO, BufferedReader(_Counted(file, on_read), _PIECE)) if on_read else file
    try:
        stream = compression.open_ahead(source) if ahead else compression.open(source)
    except EOFError as error:
        file.close()
        raise ValueError(f"the data is damaged: {error}") from error

    def over() -> ValueError:
        return ValueError(f"the blob unpacks to more than {limit} bytes, {RATIO} times its size")

    return cast(BinaryIO, _Bounded(stream, limit, over, file))


@contextmanager
def verified_layer(
    blob: Path, diff_id: Digest, *, ahead: bool = False, on_read: Callable[[int], None] | None = None
) -> Iterator[Iterator[bytes]]:
    """The tar in *blob*, in pieces; parameters as in `open_layer`. After the `with` block, the rest is read.

    :raises VerificationFailed: *blob* is missing or damaged, its tar has another digest than *diff_id*, or
        the block raised ValueError.
    """
    hasher = hashlib.sha256()

    def pieces(stream: BinaryIO) -> Iterator[bytes]:
        for piece in pieces_of(stream):
            hasher.update(piece)
            yield piece

    try:
        stream = open_layer(blob, ahead=ahead, on_read=on_read)
    except (OSError, ValueError) as error:
        raise _unreadable(blob, error) from error
    with stream:
        try:
            content = pieces(stream)
            yield content
            deque(content, maxlen=0)
        except ValueError as error:
            raise _unreadable(blob, error) from error
    if (got := f"sha256:{hasher.hexdigest()}") != diff_id:
        raise VerificationFailed(f"{blob.name}: diff_id mismatch: expected {diff_id}, got {got}", hint=_HINT)


def _unreadable(blob: Path, error: Exception) -> VerificationFailed:
    return VerificationFailed(f"{blob.name}: {printable(str(error))}", hint=_HINT)


def bounded(stream: BinaryIO, limit: int, over: Callable[[], Exception]) -> BinaryIO:
    """*stream*, read-only; reading more than *limit* bytes raises the exception that *over* returns.

    If *stream* is damaged, reading raises ValueError.
    """
    return cast(BinaryIO, _Bounded(stream, limit, over, None))


class _Counted(FileIO):
    """A file that reports how much was read of it."""

    def __init__(self, file: BinaryIO, on_read: Callable[[int], None]) -> None:
        super().__init__(file.fileno(), "rb", closefd=False)
        self._on_read = on_read

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        count = super().readinto(buffer)
        self._on_read(count or 0)
        return count


class _Bounded:
    def __init__(
        self, stream: BinaryIO, limit: int, over: Callable[[], Exception], file: BinaryIO | None
    ) -> None:
        """If *file* is given, *stream* reads it, and `close` closes both."""
        self._stream, self._left, self._over, self._file = stream, limit, over, file

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
        if self._file:
            self._file.close()

    def __enter__(self) -> _Bounded:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
