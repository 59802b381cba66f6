"""Defines the compressions of layers, recognised by media type and by magic bytes.

To add a compression: a name in `model/layer.py`, a row here, an encoder beside `oci/zstd.py` and a
decoder in `oci/validate/layer.py`, which shares no code with this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from torchkiln.model.layer import DEFAULT_FORMAT, Blob, LayerFormat

Open = Callable[[Path | BinaryIO], BinaryIO]


@dataclass(frozen=True, kw_only=True, slots=True)
class Compression:
    """A compression that can be read."""

    suffix: str  # of the media type of a layer, "+gzip"
    magic: bytes  # the first bytes of a blob
    open: Open  # the tar in a blob, of unlimited length; reading damaged data raises OSError or EOFError
    open_ahead: Open  # `open`, with a thread that reads ahead where that is faster

    @property
    def media_type(self) -> str:
        return f"application/vnd.oci.image.layer.v1.tar{self.suffix}"


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetCompression(Compression):
    """A compression to which finished gzip layers can be converted, by the encoder in `oci/zstd.py`."""

    name: LayerFormat
    max_parallel: int  # most layers that are compressed at once; limits memory

    @property
    def encoder(self) -> str:
        """Name and settings of the encoder, which decide the bytes; they are part of the keys of records."""
        from torchkiln.oci.zstd import ENCODER  # imported here because it loads slowly

        return ENCODER

    def compress(
        self, tar: BinaryIO, out: BinaryIO, *, unpacked: int, advanced: Callable[[int], None]
    ) -> Blob:
        """`oci.zstd.compress`."""
        from torchkiln.oci.zstd import compress

        return compress(tar, out, unpacked=unpacked, advanced=advanced)


def _open_gzip(blob: Path | BinaryIO) -> BinaryIO:  # ~0.5 GB/s; any number of members
    from isal import igzip  # imported here because it loads slowly

    if isinstance(blob, Path):
        return cast(BinaryIO, igzip.IGzipFile(str(blob), "rb"))  # type: ignore[no-untyped-call]
    return cast(BinaryIO, igzip.IGzipFile(fileobj=blob, mode="rb"))  # type: ignore[no-untyped-call]


def _open_gzip_ahead(blob: Path | BinaryIO) -> BinaryIO:
    from isal import igzip_threaded

    return cast(BinaryIO, igzip_threaded.open(blob, "rb", threads=1))  # type: ignore[no-untyped-call]


def _open_zstd(blob: Path | BinaryIO) -> BinaryIO:
    from torchkiln.oci.zstd import open_zstd

    return open_zstd(blob)


def _open_tar(blob: Path | BinaryIO) -> BinaryIO:
    return blob.open("rb") if isinstance(blob, Path) else blob


#: Every layer is made as gzip first, by `LayerWriter` and `encode`.
GZIP = Compression(suffix="+gzip", magic=b"\x1f\x8b", open=_open_gzip, open_ahead=_open_gzip_ahead)
#: It is fast enough without a thread that reads ahead.
ZSTD = TargetCompression(
    suffix="+zstd",
    magic=b"\x28\xb5\x2f\xfd",
    open=_open_zstd,
    open_ahead=_open_zstd,
    name="zstd",
    max_parallel=4,
)
IDENTITY = Compression(suffix="", magic=b"", open=_open_tar, open_ahead=_open_tar)
COMPRESSIONS = (GZIP, ZSTD, IDENTITY)  # IDENTITY last: its empty magic matches every blob
TARGETS: Mapping[LayerFormat, TargetCompression] = {ZSTD.name: ZSTD}
HEAD = max(len(compression.magic) for compression in COMPRESSIONS)
"""Bytes at the start of a blob that `of_head` needs."""


def of_head(head: bytes) -> Compression:
    return next(compression for compression in COMPRESSIONS if head.startswith(compression.magic))


def of_format(layer_format: LayerFormat) -> Compression:
    return TARGETS.get(layer_format, GZIP)


def format_of(media_types: Iterable[str]) -> LayerFormat:
    """The layer format of an image with layers of *media_types*: the first that is not the default."""
    return next(
        (name for kind in media_types for name, target in TARGETS.items() if kind.endswith(target.suffix)),
        DEFAULT_FORMAT,
    )
