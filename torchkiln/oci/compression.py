"""Defines the compressions of layers, one class each, recognised by media type and by magic bytes.

To add a compression: a name in `model/layer_format.py`, a class and an encoder here, and a
decoder in `oci/validate/layer.py`, which shares no code with this module.

The same tar gives the same zstd blob on every machine: one frame, one thread, pieces of one length and a
pledged size, with the libzstd in the PyPI package `backports.zstd`. Threads inside libzstd would change the
bytes; layers are compressed in parallel instead.
"""

from __future__ import annotations

import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO, ClassVar, cast

from torchkiln.errors import ToolMissing
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob
from torchkiln.model.layer_format import DEFAULT_FORMAT, LayerFormat
from torchkiln.oci.layer import NotCompressible
from torchkiln.oci.tar_reader import read_fully
from torchkiln.util.places import HOW_TO_INSTALL

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


_TAR = "application/vnd.oci.image.layer.v1.tar"
LEVEL = 3
WINDOW_LOG = 26
_PINNED = "1.5.7"
ENCODER = f"zstd-{_PINNED}-level-{LEVEL}-long-{WINDOW_LOG}"
_WINDOW_LOG_READ = 27  # 128 MiB: the limit of the zstd program, too
_PIECE = 1 << 20
_DAMAGED = (OSError, EOFError, ValueError)
_OPTIONS: Mapping[int, int] = {
    zstd.CompressionParameter.compression_level: LEVEL,
    zstd.CompressionParameter.enable_long_distance_matching: 1,
    zstd.CompressionParameter.window_log: WINDOW_LOG,
    zstd.CompressionParameter.checksum_flag: 1,
}


class Compression(ABC):
    """A compression that can be read."""

    suffix: ClassVar[str]
    """The suffix of the media type: ``+gzip``."""
    magic: ClassVar[bytes]
    """The first bytes of a blob."""

    @property
    def media_type(self) -> str:
        """The media type of a layer."""
        return f"{_TAR}{self.suffix}"

    @abstractmethod
    def open(self, blob: Path | BinaryIO) -> BinaryIO:
        """The tar in *blob*, of unlimited length. Reading damaged data raises OSError or EOFError."""

    def open_ahead(self, blob: Path) -> BinaryIO:
        """`open`, with a thread that reads ahead where that is faster."""
        return self.open(blob)


class TargetCompression(Compression):
    """A compression to which finished gzip layers can be converted."""

    name: ClassVar[LayerFormat]
    max_parallel: ClassVar[int]
    """Most layers that are compressed at once; limits memory."""

    @property
    @abstractmethod
    def encoder(self) -> str:
        """Name and settings of the encoder, which decide the bytes; they are part of the keys of records."""

    @abstractmethod
    def compress(
        self, tar: BinaryIO, out: BinaryIO, *, unpacked: int, advanced: Callable[[int], None]
    ) -> Blob:
        """Write the *unpacked* bytes of *tar* to *out*; *advanced* is called with the length of each piece.

        :raises NotCompressible: *tar* cannot be read to its end or has a different length.
        :raises ToolMissing: another version of the encoder is installed.
        """


class Gzip(Compression):
    """Any number of gzip members. `LayerWriter` and `encode` write it; every layer is made as gzip first."""

    suffix = "+gzip"
    magic = b"\x1f\x8b"

    def open(self, blob: Path | BinaryIO) -> BinaryIO:  # ~0.5 GB/s
        from isal import igzip  # imported here because it loads slowly

        if isinstance(blob, Path):
            return cast(BinaryIO, igzip.IGzipFile(str(blob), "rb"))  # type: ignore[no-untyped-call]
        return cast(BinaryIO, igzip.IGzipFile(fileobj=blob, mode="rb"))  # type: ignore[no-untyped-call]

    def open_ahead(self, blob: Path) -> BinaryIO:
        from isal import igzip_threaded

        return cast(BinaryIO, igzip_threaded.open(str(blob), "rb", threads=1))  # type: ignore[no-untyped-call]


class Zstd(TargetCompression):
    """Writes one zstd frame, reads any number. It is fast enough without a thread that reads ahead."""

    name = "zstd"
    suffix = "+zstd"
    magic = b"\x28\xb5\x2f\xfd"
    max_parallel = 4

    @property
    def encoder(self) -> str:

        return ENCODER

    def open(self, blob: Path | BinaryIO) -> BinaryIO:

        return open_zstd(blob)

    def compress(
        self, tar: BinaryIO, out: BinaryIO, *, unpacked: int, advanced: Callable[[int], None]
    ) -> Blob:

        return compress(tar, out, unpacked=unpacked, advanced=advanced)


class Identity(Compression):
    """No compression: the blob is the tar. Used if no magic matches."""

    suffix = ""
    magic = b""

    def open(self, blob: Path | BinaryIO) -> BinaryIO:
        return blob.open("rb") if isinstance(blob, Path) else blob


GZIP, ZSTD, IDENTITY = Gzip(), Zstd(), Identity()
COMPRESSIONS: tuple[Compression, ...] = (
    GZIP,
    ZSTD,
    IDENTITY,
)  # Identity last: its empty magic matches every blob
TARGETS: Mapping[LayerFormat, TargetCompression] = {
    compression.name: compression
    for compression in COMPRESSIONS
    if isinstance(compression, TargetCompression)
}
HEAD = max(len(compression.magic) for compression in COMPRESSIONS)
"""Bytes at the start of a blob that `of_head` needs."""


def of_head(head: bytes) -> Compression:
    """The compression of a blob that begins with *head*."""
    return next(compression for compression in COMPRESSIONS if head.startswith(compression.magic))


def of_format(layer_format: LayerFormat) -> Compression:
    """The compression that `--layer-format` names."""
    return TARGETS.get(layer_format, GZIP)


def format_of(media_types: Iterable[str]) -> LayerFormat:
    """The layer format of an image with layers of *media_types*: the first that is not the default."""
    return next(
        (name for kind in media_types for name, target in TARGETS.items() if kind.endswith(target.suffix)),
        DEFAULT_FORMAT,
    )


"""The compression level; the highest is 22. docs/layer-formats.md compares levels and windows."""

"""Finds repetitions within 64 MiB: CUDA libraries have similar code for each GPU architecture."""


"""The encoder's name in the keys of records; it changes with everything that changes the bytes."""


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
