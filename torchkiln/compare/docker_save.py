"""Reads the layers of an image from the output of `docker save`.

A saved image is a tar with layers (tar, tar+gzip or tar+zstd), and with JSON documents that list them in
order. It is read once as a stream, and not stored on disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, BinaryIO, cast

from torchkiln.model.contents import Layer, LayerContents
from torchkiln.oci.compression import IDENTITY, of_head
from torchkiln.oci.read_tar import PathFilter, layer_contents
from torchkiln.oci.tar_reader import IteratorFile, Stream, TarReader, pieces_of, read_fully
from torchkiln.util.strict_json import json_of

_MAX_DOCUMENT = 4 << 20  # bytes of a JSON document
_MAX_DOCUMENTS = 64 << 20  # bytes of all documents
_TAR = b"ustar"
_HEAD = 512


def read_saved(stream: Stream, wanted: PathFilter) -> list[Layer]:
    """The layers of the image in *stream*, lowest first, with the text of *wanted* files.

    :raises ValueError: it is not a saved image, or has an unknown format.
    :raises DAMAGED: the tar or a layer is damaged.
    """
    layers: dict[str, tuple[int | None, LayerContents]] = {}
    documents: dict[str, bytes] = {}
    links: dict[str, str] = {}
    archive = TarReader(pieces_of(stream))
    for entry in archive:
        if entry.kind == "link":  # older engines store repeated layers as links
            links[entry.path] = entry.target.removeprefix("../")
        if entry.kind != "file":
            continue
        content = IteratorFile(archive.content())
        head = read_fully(content, _HEAD)
        blob = IteratorFile(chain([head], pieces_of(content)))
        if (compression := of_head(head)) is not IDENTITY:
            with compression.open(cast(BinaryIO, blob)) as inflated:
                layers[entry.path] = (entry.size, layer_contents(inflated, wanted))
        elif head[257:262] == _TAR:
            layers[entry.path] = (None, layer_contents(blob, wanted))
        elif entry.size <= _MAX_DOCUMENT:
            documents[entry.path] = b"".join(pieces_of(blob))
            if sum(map(len, documents.values())) > _MAX_DOCUMENTS:
                raise ValueError(f"more than {_MAX_DOCUMENTS >> 20} MiB of documents")
    try:
        (manifest,) = json_of(documents["manifest.json"])
        config = json_of(documents[manifest["Config"]])
        paths = [links.get(path, path) for path in manifest["Layers"]]
        return [
            Layer(diff_id=diff_id, title=title, size=layers[path][0], contents=layers[path][1])
            for path, diff_id, title in zip(
                paths, config["rootfs"]["diff_ids"], titles_of(config, len(paths)), strict=True
            )
        ]
    except LookupError as error:
        raise ValueError(f"the saved image has no {error}") from error
    except (TypeError, AttributeError) as error:
        raise ValueError("the saved image has documents in an unknown format") from error


def titles_of(config: Mapping[str, Any], count: int) -> Sequence[str]:
    """The `created_by` of each layer in an image's history; empty texts if the history is incomplete."""
    history = config.get("history") or []
    titles = [str(entry.get("created_by", "")) for entry in history if not entry.get("empty_layer")]
    return [" ".join(text.split()) for text in titles] if len(titles) == count else [""] * count
