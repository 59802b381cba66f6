"""tar → tar+zstd blob, by the one pinned encoder; and the blob back as its tar.

The same tar gives the same bytes on every machine: one frame, one thread, pieces of one length, the tar's own
length told beforehand, by the libzstd inside the PyPI package `backports.zstd`. Threads inside libzstd would
give other bytes than none; layers are compressed side by side instead.
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

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LEVEL = 3
"""Of 22. Here and for WINDOW_LOG: what others cost and save stands in docs/layer-formats.md."""

WINDOW_LOG = 26
"""Repetitions are found over 64 MiB. CUDA's libraries repeat themselves from one GPU to the next."""

_PINNED = "1.5.7"

ENCODER = f"zstd-{_PINNED}-level-{LEVEL}-long-{WINDOW_LOG}"
"""The encoder's name in the keys of records: whatever changes the bytes changes it."""

_WINDOW_LOG_READ = 27  # frames that want more than 128 MiB are refused, as the zstd program refuses them

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
    """Write the *unpacked* bytes of *tar* to *out* as one frame, with its length and checksum in it.

    Needs about 75 MiB of memory, whatever their length.

    :param advanced: is told, piece by piece, how many bytes of *tar* were read.
    :raises NotCompressible: see there. *out* is then incomplete.
    :raises ToolMissing: another version of the encoder is installed.
    """
    if zstd.zstd_version != _PINNED:
        raise ToolMissing(
            f"the encoder is pinned to libzstd {_PINNED}, this Python has {zstd.zstd_version}",
            hint="run: make setup, with a Python of 3.10 to 3.13; or stay with --layer-format gzip",
        )
    compressor = zstd.ZstdCompressor(options=_OPTIONS)
    compressor.set_pledged_input_size(unpacked)
    inside, outside = hashlib.sha256(), hashlib.sha256()
    read = size = 0

    def emit(data: bytes) -> None:
        nonlocal size
        out.write(data)
        outside.update(data)
        size += len(data)

    while piece := _read(tar):
        read += len(piece)
        if read > unpacked:
            break
        inside.update(piece)
        emit(compressor.compress(piece))
        advanced(len(piece))
    if read != unpacked:
        raise NotCompressible(f"it holds {'more' if read > unpacked else 'less'} than {unpacked} bytes")
    emit(compressor.flush())
    return Blob(
        digest=Digest(f"sha256:{outside.hexdigest()}"),
        diff_id=Digest(f"sha256:{inside.hexdigest()}"),
        size=size,
        unpacked=read,
    )


def open_zstd(blob: Path | BinaryIO) -> BinaryIO:
    """*blob* decompressed while it is read, any number of frames. Reading raises OSError or EOFError where
    it is damaged, cut off, goes on with what is no frame, or wants too large a window."""
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_READ}
    return cast(BinaryIO, _File(cast(Path, blob), "rb", options=options))


class _File(zstd.ZstdFile):
    """A ZstdFile whose errors are those of other files."""

    def read(self, size: int | None = -1) -> bytes:
        try:
            return super().read(size)
        except zstd.ZstdError as error:
            raise OSError(str(error)) from error


def _read(tar: BinaryIO) -> bytes:
    """The next piece, of full length but at the end: where pieces end must not hang on the source."""
    parts, missing = [], _PIECE
    try:
        while missing and (part := tar.read(missing)):
            parts.append(part)
            missing -= len(part)
    except _DAMAGED as error:
        raise NotCompressible(f"it is damaged: {error}") from error
    return b"".join(parts)
