"""A layer's blob → its tar as a stream, whichever way it is compressed: the first bytes tell.

Engines do the same, whatever the manifest calls it; whoever reads compares the diff_id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from torchkiln.oci.gunzip import open_gzip, open_gzip_ahead
from torchkiln.oci.tar_reader import RATIO, most_unpacked

_PIECE = 1 << 20
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


@contextmanager
def layer_pieces(blob: Path, seen: Sequence[Callable[[bytes], object]]) -> Iterator[Iterator[bytes]]:
    """The tar in *blob*; each function of *seen* is handed each piece first.

    Reading raises ValueError with a sentence where the blob is damaged or unpacks to too much.

    :raises OSError: it is not there.
    """
    most = most_unpacked(blob.stat().st_size)

    def pieces(stream: BinaryIO) -> Iterator[bytes]:
        count = 0
        while True:
            try:
                piece = stream.read(_PIECE)
            except (OSError, EOFError, ValueError) as error:
                raise ValueError(f"is damaged: {error}") from error
            if not piece:
                return
            count += len(piece)
            if count > most:
                raise ValueError(f"unpacks to more than {most} bytes, {RATIO} times its size")
            for look in seen:
                look(piece)
            yield piece

    try:
        stream = open_layer(blob, ahead=True)
    except (EOFError, ValueError) as error:
        raise ValueError(f"is damaged: {error}") from error
    with stream:
        yield pieces(stream)
