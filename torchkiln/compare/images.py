"""Reads the layers of an image from an OCI layout, or from a Docker engine with `docker save`.

A saved image is a tar with layers (tar, tar+gzip or tar+zstd) and with JSON documents that list them in
order. It is read once as a stream, and not stored on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, BinaryIO, Protocol, cast

from torchkiln.compare.layers import settings_of
from torchkiln.compare.packages import names_packages, packages_of
from torchkiln.docker.daemon import Engine, connected
from torchkiln.errors import ConfigError, ToolMissing
from torchkiln.model.contents import Layer, LayerContents, LayeredImage
from torchkiln.model.progress import Observer, Silent
from torchkiln.oci.compression import IDENTITY, of_head
from torchkiln.oci.layout import ImageOnDisk, LayerOnDisk
from torchkiln.oci.opening import verified_layer
from torchkiln.oci.read_tar import DAMAGED, PathFilter, layer_contents
from torchkiln.oci.tar_reader import IteratorFile, Stream, TarReader, pieces_of, read_fully
from torchkiln.util.strict_json import json_of

_TIMEOUT = 600  # seconds without data; an engine sends little while it packs layers
_MAX_DOCUMENT = 4 << 20  # bytes of a JSON document
_MAX_DOCUMENTS = 64 << 20  # bytes of all documents
_TAR = b"ustar"
_HEAD = 512


class ImageReader(Protocol):
    def digest(self) -> str:
        """The digest of the image's manifest, or the engine's ID of the image."""

    def layered(self, known: Mapping[str, Layer], observer: Observer) -> LayeredImage:
        """All layers; those in *known*, by diff_id, are not read again."""


def same_digest(a: ImageReader, b: ImageReader) -> str | None:
    """The digest that both images have; None if they differ. Reads no layer.

    :raises KilnError: an image cannot be found.
    """
    return a.digest() if a.digest() == b.digest() else None


def layered_images(a: ImageReader, b: ImageReader, observer: Observer) -> tuple[LayeredImage, LayeredImage]:
    """Both images by layers; a layer that both have is read once.

    :raises KilnError: an image cannot be read.
    """
    left = a.layered({}, observer)
    return left, b.layered({layer.diff_id: layer for layer in left.layers}, observer)


def contents_of(layer: LayerOnDisk, wanted: PathFilter, observer: Observer | None = None) -> LayerContents:
    """The contents of *layer*, with the text of *wanted* files. Call `begin_reading` first.

    :raises VerificationFailed: it is damaged or does not match its diff_id.
    """
    observer = observer or Silent()

    def on_read(count: int) -> None:
        observer.advance("read", layer.digest, count)

    with verified_layer(layer.path, layer.diff_id, on_read=on_read) as pieces:
        contents = layer_contents(IteratorFile(pieces), wanted)
    observer.end("read", layer.digest)
    return contents


@dataclass(frozen=True, slots=True)
class InLayout:
    """An image of an OCI layout. The digests of its layers are verified."""

    image: ImageOnDisk

    def digest(self) -> str:
        return self.image.manifest

    def layered(self, known: Mapping[str, Layer], observer: Observer) -> LayeredImage:
        """All layers.

        :raises VerificationFailed: a layer is damaged or does not match its diff_id.
        """
        titles = titles_of(self.image.config, len(self.image.layers))
        layers = []
        begin_reading([layer for layer in self.image.layers if layer.diff_id not in known], observer)
        for layer, title in zip(self.image.layers, titles, strict=True):
            if layer.diff_id in known:
                contents = known[layer.diff_id].contents
            else:
                contents = contents_of(layer, names_packages, observer)
            layers.append(Layer(diff_id=layer.diff_id, title=title, size=layer.size, contents=contents))
        settings = _settings(self.image.config, "config", "os", "architecture")
        return _layered(self.image.manifest, settings, layers)


@dataclass(frozen=True, slots=True)
class InEngine:
    name: str
    engine: Engine

    def digest(self) -> str:
        with self._api() as client:
            found: str = client.inspect_image(self.name)["Id"]
        return found

    def layered(self, known: Mapping[str, Layer], observer: Observer) -> LayeredImage:
        """All layers; their compressed sizes are known only if the engine stores them compressed.

        :raises ConfigError: there is no such image.
        :raises ToolMissing: the engine cannot be reached or fails, or the format is unknown.
        """
        with self._api() as client:
            description = client.inspect_image(self.name)
            diff_ids = description["RootFS"].get("Layers") or []
            if all(diff_id in known for diff_id in diff_ids):
                layers = [known[diff_id] for diff_id in diff_ids]
            else:
                chunks = _counted(client.get_image(self.name), description, observer)
                layers = read_saved(IteratorFile(chunks), names_packages)
        settings = _settings(description, "Config", "Os", "Architecture")
        return _layered(description["Id"], settings, layers)

    @contextmanager
    def _api(self) -> Iterator[Any]:
        """The engine's API; its exceptions are raised as KilnErrors."""
        from docker.errors import DockerException, ImageNotFound

        try:
            with connected(self.engine, _TIMEOUT) as client:
                yield client.api
        except ImageNotFound as error:
            raise ConfigError(
                f"{self.name}: no such image in the engine at {self.engine.host}",
                hint="see `docker image ls`, or load an image with `torchkiln build TAG --load`",
            ) from error
        except (DockerException, *DAMAGED) as error:
            raise ToolMissing(
                f"cannot read {self.name} from the engine at {self.engine.host}: {error}",
                hint="check with: docker save",
            ) from error


def _counted(chunks: Iterable[bytes], description: Mapping[str, Any], observer: Observer) -> Iterator[bytes]:
    """Pass on the *chunks* of an engine's image and report progress; the total is the image's size."""
    name, left = str(description.get("Id", "")), int(description.get("Size") or 0)
    observer.begin("read", name, left)
    for chunk in chunks:
        observer.advance("read", name, min(len(chunk), left))
        left -= min(len(chunk), left)
        yield chunk
    observer.advance("read", name, left)
    observer.end("read", name)


def _layered(digest: str, settings: Mapping[str, str], layers: Sequence[Layer]) -> LayeredImage:
    return LayeredImage(
        digest=digest,
        settings=settings,
        layers=tuple(layers),
        packages=packages_of([layer.contents for layer in layers]),
    )


def _settings(description: Mapping[str, Any], container: str, system: str, processor: str) -> dict[str, str]:
    """The settings in *description*, which has its parts under these keys."""
    platform = f"{description.get(system, '')}/{description.get(processor, '')}"
    return settings_of(description.get(container) or {}, platform)


def begin_reading(layers: Iterable[LayerOnDisk], observer: Observer) -> None:
    """Report the sizes of all *layers* before the first is read, so that progress shows the total."""
    for layer in layers:
        observer.begin("read", layer.digest, layer.size)


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
