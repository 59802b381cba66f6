"""How a layer's tar is compressed: one class per compression, known by media type and by first bytes.

Another compression is a name in `model/layer_format.py`, a class here, an encoder beside `oci/zstd.py` and
a decoder in `oci/validate/layer.py`, which is an oracle and shares nothing with what is here.
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
    """A compression that is read."""

    suffix: ClassVar[str]
    """Of media types: ``+gzip``."""
    magic: ClassVar[bytes]
    """What a blob begins with."""

    @property
    def media_type(self) -> str:
        """Of a layer."""
        return f"{_TAR}{self.suffix}"

    @abstractmethod
    def open(self, blob: Path | BinaryIO) -> BinaryIO:
        """The tar in *blob*, as long as it may be. Reading raises OSError or EOFError where it is damaged."""

    def open_ahead(self, blob: Path) -> BinaryIO:
        """`open`, with a thread of its own that reads ahead where that is faster."""
        return self.open(blob)


class TargetCompression(Compression):
    """A compression into which finished layers, which are gzip, are converted."""

    name: ClassVar[LayerFormat]
    side_by_side: ClassVar[int]
    """Layers that are compressed at once, at most: bounds memory."""

    @property
    @abstractmethod
    def encoder(self) -> str:
        """What decides the bytes beside the tar: a part of the keys of records."""

    @abstractmethod
    def compress(
        self, tar: BinaryIO, out: BinaryIO, *, unpacked: int, advanced: Callable[[int], None]
    ) -> Blob:
        """Write the *unpacked* bytes of *tar* to *out*; *advanced* gets the length of each piece.

        :raises NotCompressible: *tar* cannot be read to its end, or has another length.
        :raises ToolMissing: another version of the encoder is installed.
        """


class Gzip(Compression):
    """Any number of gzip members. Its writers are `LayerWriter` and `encode`: all layers are made so."""

    suffix = "+gzip"
    magic = b"\x1f\x8b"

    def open(self, blob: Path | BinaryIO) -> BinaryIO:  # ~0.5 GB/s
        from isal import igzip  # only here: slow to load

        if isinstance(blob, Path):
            return cast(BinaryIO, igzip.IGzipFile(str(blob), "rb"))  # type: ignore[no-untyped-call]
        return cast(BinaryIO, igzip.IGzipFile(fileobj=blob, mode="rb"))  # type: ignore[no-untyped-call]

    def open_ahead(self, blob: Path) -> BinaryIO:
        from isal import igzip_threaded

        return cast(BinaryIO, igzip_threaded.open(str(blob), "rb", threads=1))  # type: ignore[no-untyped-call]


class Zstd(TargetCompression):
    """One zstd frame; of others' layers any number of them. Fast enough without a thread that reads ahead."""

    name = "zstd"
    suffix = "+zstd"
    magic = b"\x28\xb5\x2f\xfd"
    side_by_side = 4

    @property
    def encoder(self) -> str:
        from torchkiln.oci.zstd import ENCODER

        return ENCODER

    def open(self, blob: Path | BinaryIO) -> BinaryIO:
        from torchkiln.oci.zstd import open_zstd  # only here: slow to load, and few layers need it

        return open_zstd(blob)

    def compress(
        self, tar: BinaryIO, out: BinaryIO, *, unpacked: int, advanced: Callable[[int], None]
    ) -> Blob:
        from torchkiln.oci.zstd import compress

        return compress(tar, out, unpacked=unpacked, advanced=advanced)


class Identity(Compression):
    """None: the blob is the tar, known by the lack of another's magic bytes."""

    suffix = ""
    magic = b""

    def open(self, blob: Path | BinaryIO) -> BinaryIO:
        return blob.open("rb") if isinstance(blob, Path) else blob


GZIP, ZSTD, IDENTITY = Gzip(), Zstd(), Identity()
COMPRESSIONS: tuple[Compression, ...] = (GZIP, ZSTD, IDENTITY)  # the identity last: its magic fits each blob
BY_MEDIA_TYPE: Mapping[str, Compression] = {one.media_type: one for one in COMPRESSIONS}
TARGETS: Mapping[LayerFormat, TargetCompression] = {
    one.name: one for one in COMPRESSIONS if isinstance(one, TargetCompression)
}
HEAD = max(len(one.magic) for one in COMPRESSIONS)
"""Bytes of a blob that tell its compression."""


def of_head(head: bytes) -> Compression:
    """The compression of a blob that begins with *head*."""
    return next(one for one in COMPRESSIONS if head.startswith(one.magic))


def of_format(layer_format: LayerFormat) -> Compression:
    """The compression that `--layer-format` names."""
    return TARGETS.get(layer_format, GZIP)


def format_of(media_types: Iterable[str]) -> LayerFormat:
    """The format of an image with layers of *media_types*: the default only if no layer has another."""
    found = [one.name for kind in media_types for one in TARGETS.values() if kind.endswith(one.suffix)]
    return found[0] if found else DEFAULT_FORMAT
