"""Defines the compressions of layers, one class each, recognised by media type and by magic bytes.

To add a compression: a name in `model/layer_format.py`, a class here, an encoder beside `oci/zstd.py` and a
decoder in `oci/validate/layer.py`, which shares no code with this module.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO, ClassVar, cast

from torchkiln.model.layer import Blob
from torchkiln.model.layer_format import DEFAULT_FORMAT, LayerFormat

_TAR = "application/vnd.oci.image.layer.v1.tar"


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
        from torchkiln.oci.zstd import ENCODER

        return ENCODER

    def open(self, blob: Path | BinaryIO) -> BinaryIO:
        from torchkiln.oci.zstd import open_zstd  # imported here because it loads slowly

        return open_zstd(blob)

    def compress(
        self, tar: BinaryIO, out: BinaryIO, *, unpacked: int, advanced: Callable[[int], None]
    ) -> Blob:
        from torchkiln.oci.zstd import compress

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
