"""Compresses a tar to a zstd blob with one pinned encoder, and decompresses it.

The same tar gives the same bytes on every machine: one frame, one thread, pieces of one length and a pledged
size, with the libzstd in the PyPI package `backports.zstd`. Threads inside libzstd would change the bytes;
layers are compressed in parallel instead.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, cast

from torchkiln.errors import ToolMissing
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob
from torchkiln.oci.layer import NotCompressible
from torchkiln.oci.tar_reader import read_fully
from torchkiln.util.places import HOW_TO_INSTALL

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LEVEL = 3
"""The compression level; the highest is 22. docs/layer-formats.md compares levels and windows."""

WINDOW_LOG = 26
"""Finds repetitions within 64 MiB: CUDA libraries have similar code for each GPU architecture."""

_PINNED = "1.5.7"

ENCODER = f"zstd-{_PINNED}-level-{LEVEL}-long-{WINDOW_LOG}"
"""The encoder's name in the keys of records; it changes with everything that changes the bytes."""

_WINDOW_LOG_READ = 27  # 128 MiB: the limit of the zstd program, too

_PIECE = 1 << 20
_DAMAGED = (OSError, EOFError, ValueError)
_OPTIONS: Mapping[int, int] = {
    zstd.CompressionParameter.compression_level: LEVEL,
    zstd.CompressionParameter.enable_long_distance_matching: 1,
    zstd.CompressionParameter.window_log: WINDOW_LOG,
    zstd.CompressionParameter.checksum_flag: 1,
}


def compress(
    tar: BinaryIO, out: BinaryIO, *, unpacked: int, advanced: Callable[[int], None] = lambda _: None
) -> Blob:
    """Write the *unpacked* bytes of *tar* to *out* as one frame with length and checksum.

    Needs about 75 MiB of memory for any length.

    :param advanced: called with the length of each piece of *tar*.
    :raises NotCompressible: *tar* is damaged or has a different length; *out* is incomplete.
    :raises ToolMissing: another version of the encoder is installed.
    """
    if zstd.zstd_version != _PINNED:
        raise ToolMissing(
            f"libzstd {_PINNED} is required, but this Python has {zstd.zstd_version}",
            hint=f"{HOW_TO_INSTALL}, with Python 3.10 to 3.13; or use --layer-format gzip",
        )
    compressor = zstd.ZstdCompressor(options=_OPTIONS)
    compressor.set_pledged_input_size(unpacked)
    tar_hash, blob_hash = hashlib.sha256(), hashlib.sha256()
    read = size = 0

    def emit(data: bytes) -> None:
        nonlocal size
        out.write(data)
        blob_hash.update(data)
        size += len(data)

    while piece := _read(tar):
        read += len(piece)
        if read > unpacked:
            break
        tar_hash.update(piece)
        emit(compressor.compress(piece))
        advanced(len(piece))
    if read != unpacked:
        raise NotCompressible(f"it has {'more' if read > unpacked else 'less'} than {unpacked} bytes")
    emit(compressor.flush())
    return Blob(
        digest=Digest(f"sha256:{blob_hash.hexdigest()}"),
        diff_id=Digest(f"sha256:{tar_hash.hexdigest()}"),
        size=size,
        unpacked=read,
    )


def open_zstd(blob: Path | BinaryIO) -> BinaryIO:
    """The content of all frames of *blob*.

    Reading raises OSError or EOFError if it is damaged or truncated, or needs too large a window.
    """
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_READ}
    return cast(BinaryIO, _File(cast(Path, blob), "rb", options=options))


class _File(zstd.ZstdFile):
    """A ZstdFile that raises OSError."""

    def read(self, size: int | None = -1) -> bytes:
        try:
            return super().read(size)
        except zstd.ZstdError as error:
            raise OSError(str(error)) from error


def _read(tar: BinaryIO) -> bytes:
    """The next piece. All but the last have the same length, whatever the source returns for each read."""
    try:
        return read_fully(tar, _PIECE)
    except _DAMAGED as error:
        raise NotCompressible(f"it is damaged: {error}") from error
