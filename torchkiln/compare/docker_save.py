"""What a Docker engine sends (`docker save`, `docker export`) → streams, and the layers in a saved image.

A saved image is a tar: layers, each a tar, a tar+gzip or a tar+zstd; then, or before, the documents that
tell their order. It is read once, as it comes, and nothing of it goes to the disk.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from torchkiln.model.contents import Layer, LayerContents
from torchkiln.oci.compression import IDENTITY, of_head
from torchkiln.oci.read_tar import PathFilter, layer_contents
from torchkiln.oci.tar_reader import TarReader, pieces_of
from torchkiln.util.strict_json import json_of

_DOCUMENT = 4 << 20  # bytes of a JSON document
_DOCUMENTS = 64 << 20  # bytes of all
_TAR = b"ustar"
_HEAD = 512


@contextmanager
def stream_of(pieces: Iterable[bytes]) -> Iterator[BinaryIO]:
    """*pieces* as a file. What is not wanted is not fetched."""
    with io.BufferedReader(_Pieces(iter(pieces)), 1 << 20) as stream:
        yield cast(BinaryIO, stream)


def read_saved(stream: BinaryIO, wanted: PathFilter) -> list[Layer]:
    """The layers of the one image in *stream*, lowest first; of paths that are *wanted* the text.

    :raises ValueError: it is no saved image, or in a form that is not known here.
    :raises DAMAGED: as reading a tar does.
    """
    layers: dict[str, tuple[int | None, LayerContents]] = {}
    documents: dict[str, bytes] = {}
    links: dict[str, str] = {}
    archive = TarReader(pieces_of(stream))
    for entry in archive:
        if entry.kind == "link":  # older engines keep one copy of a layer
            links[entry.path] = entry.target.removeprefix("../")
        if entry.kind != "file":
            continue
        with io.BufferedReader(_Pieces(archive.content()), 1 << 20) as blob:
            head = blob.peek(_HEAD)[:_HEAD]
            if (compression := of_head(head)) is not IDENTITY:
                with compression.open(cast(BinaryIO, blob)) as inflated:
                    layers[entry.path] = (entry.size, layer_contents(inflated, wanted))
            elif head[257:262] == _TAR:
                layers[entry.path] = (None, layer_contents(cast(BinaryIO, blob), wanted))
            elif entry.size <= _DOCUMENT:
                documents[entry.path] = blob.read()
                if sum(map(len, documents.values())) > _DOCUMENTS:
                    raise ValueError(f"more than {_DOCUMENTS >> 20} MiB of documents")
    try:
        (manifest,) = json_of(documents["manifest.json"])
        config = json_of(documents[manifest["Config"]])
        places = [links.get(place, place) for place in manifest["Layers"]]
        return [
            Layer(diff_id=diff_id, title=title, size=layers[place][0], contents=layers[place][1])
            for place, diff_id, title in zip(
                places, config["rootfs"]["diff_ids"], titles_of(config, len(places)), strict=True
            )
        ]
    except LookupError as error:
        raise ValueError(f"the saved image lacks {error}") from error
    except (TypeError, AttributeError) as error:
        raise ValueError("the saved image has documents of another form") from error


def titles_of(config: Mapping[str, Any], count: int) -> Sequence[str]:
    """What an image's history says of each of its *count* layers; nothing where it does not tell of all."""
    history = config.get("history") or []
    told = [str(entry.get("created_by", "")) for entry in history if not entry.get("empty_layer")]
    return [" ".join(text.split()) for text in told] if len(told) == count else [""] * count


class _Pieces(io.RawIOBase):
    """Pieces of bytes as a file that can be read once."""

    def __init__(self, pieces: Iterator[bytes | memoryview]) -> None:
        super().__init__()
        self._pieces = pieces
        self._held: bytes | memoryview = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill *buffer* as far as one piece goes."""
        while not self._held:
            try:
                self._held = next(self._pieces)
            except StopIteration:
                return 0
        count = min(len(buffer), len(self._held))
        buffer[:count], self._held = self._held[:count], self._held[count:]
        return count
