"""An image in a layout or in a Docker engine → what is in it: down to its files, or by its layers.

A layout's layers are read as they lie there. An engine is asked: for its files what a container would see
(`docker export`), for its layers `docker save`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Protocol, cast

from torchkiln.compare.docker_save import read_saved, stream_of, titles_of
from torchkiln.compare.files import settings_of
from torchkiln.compare.packages import names_packages, packages_of
from torchkiln.docker.daemon import Engine, connected
from torchkiln.errors import ConfigError, ToolMissing, VerificationFailed
from torchkiln.model.contents import Layer, LayerContents, LayeredImage, TreeEntry, WholeImage
from torchkiln.oci.layout import ImageOnDisk, LayerOnDisk
from torchkiln.oci.opening import open_layer
from torchkiln.oci.read_tar import DAMAGED, PathFilter, apply_layer, layer_contents

#: What an engine puts into every container, over whatever the image has there.
ENGINES_OWN = frozenset(
    [
        *(".dockerenv", "dev", "dev/console", "dev/pts", "dev/shm", "proc", "sys"),
        *("etc/hostname", "etc/hosts", "etc/mtab", "etc/resolv.conf"),
    ]
)
_PIECE = 1 << 20  # bytes that are read at a time
_SILENCE = 600  # seconds without a byte; an engine that packs layers says little


class Source(Protocol):
    """Where an image is, and how it is read there."""

    @property
    def as_container(self) -> bool:
        """Whether `whole` has ENGINES_OWN in it."""

    def whole(self, wanted: PathFilter) -> WholeImage:
        """All its files; of those that are *wanted* the text."""

    def layered(self, known: Mapping[str, Layer]) -> LayeredImage:
        """Its layers; those that are *known*, by their diff_id, are not read again."""


def whole_images(a: Source, b: Source, wanted: PathFilter) -> tuple[WholeImage, WholeImage]:
    """Both down to their files; without ENGINES_OWN where only one side would have it.

    :raises KilnError: as reading either does.
    """
    left, right = a.whole(wanted), b.whole(wanted)
    if a.as_container == b.as_container:
        return left, right
    return _as_image(left), _as_image(right)


def layered_images(a: Source, b: Source) -> tuple[LayeredImage, LayeredImage]:
    """Both by their layers, each of which is read once.

    :raises KilnError: as reading either does.
    """
    left = a.layered({})
    return left, b.layered({layer.diff_id: layer for layer in left.layers})


def contents_of(layer: LayerOnDisk, wanted: PathFilter) -> LayerContents:
    """What *layer* holds; of paths that are *wanted* the text.

    :raises VerificationFailed: it is damaged or not what its diff_id says.
    """
    with _opened(layer) as stream:
        return layer_contents(stream, wanted)


def unpacked_of(layer: LayerOnDisk) -> int:
    """How many bytes *layer* has as a tar, for which it is read to its end.

    :raises VerificationFailed: it is damaged or not what its diff_id says.
    """
    with _opened(layer) as stream:
        return sum(len(piece) for piece in iter(partial(stream.read, _PIECE), b""))


@dataclass(frozen=True, slots=True)
class InLayout:
    """An image of an OCI layout. Its layers' digests are computed as they pass."""

    image: ImageOnDisk
    as_container: bool = False

    def whole(self, wanted: PathFilter) -> WholeImage:
        """All its files, as its layers make them.

        :raises VerificationFailed: a layer is damaged or not what its diff_id says.
        """
        tree: dict[str, TreeEntry] = {}
        for layer in self.image.layers:
            with _opened(layer) as stream:
                apply_layer(tree, stream, wanted)
        return WholeImage(tree=tree, settings=self._settings())

    def layered(self, known: Mapping[str, Layer]) -> LayeredImage:
        """Its layers.

        :raises VerificationFailed: as for `whole`.
        """
        titles = titles_of(self.image.config, len(self.image.layers))
        layers = []
        for layer, title in zip(self.image.layers, titles, strict=True):
            if layer.diff_id in known:
                contents = known[layer.diff_id].contents
            else:
                contents = contents_of(layer, names_packages)
            layers.append(Layer(diff_id=layer.diff_id, title=title, size=layer.size, contents=contents))
        return _layered(self.image.manifest, self._settings(), layers)

    def _settings(self) -> dict[str, str]:
        config = self.image.config
        return settings_of(config.get("config") or {}, _platform(config, "os", "architecture"))


@dataclass(frozen=True, slots=True)
class InEngine:
    """An image in a Docker engine, by the name that it has there."""

    name: str
    engine: Engine
    as_container: bool = True

    def whole(self, wanted: PathFilter) -> WholeImage:
        """All its files, as a container that never ran sees them.

        :raises ConfigError: there is no such image.
        :raises ToolMissing: the engine does not give it.
        """
        tree: dict[str, TreeEntry] = {}
        with self._asked() as client:
            told = client.inspect_image(self.name)
            container = client.create_container(self.name, entrypoint=["true"])["Id"]
            try:
                with stream_of(client.export(container)) as stream:
                    apply_layer(tree, stream, wanted)
            finally:
                client.remove_container(container, force=True, v=True)
        return WholeImage(tree=tree, settings=_settings_told(told))

    def layered(self, known: Mapping[str, Layer]) -> LayeredImage:
        """Its layers, of which sizes are told only where the engine keeps them as they are transferred.

        :raises ConfigError: there is no such image.
        :raises ToolMissing: the engine does not give it, or in a form that cannot be read.
        """
        with self._asked() as client:
            told = client.inspect_image(self.name)
            diff_ids = told["RootFS"].get("Layers") or []
            if all(diff_id in known for diff_id in diff_ids):
                layers = [known[diff_id] for diff_id in diff_ids]
            else:
                with stream_of(client.get_image(self.name)) as stream:
                    layers = read_saved(stream, names_packages)
        return _layered(told["Id"], _settings_told(told), layers)

    @contextmanager
    def _asked(self) -> Iterator[Any]:
        """The engine's API; what goes wrong with it as errors of ours."""
        from docker.errors import DockerException, ImageNotFound

        try:
            with connected(self.engine, _SILENCE) as client:
                yield client.api
        except ImageNotFound as error:
            where = f"in the engine at {self.engine.host}"
            raise ConfigError(
                f"{self.name}: no such image {where}", hint="docker image ls; `build --load` puts one there"
            ) from error
        except (DockerException, *DAMAGED) as error:
            raise ToolMissing(
                f"{self.name} cannot be read from the engine at {self.engine.host}: {error}",
                hint="try: docker save; docker export",
            ) from error


def _as_image(image: WholeImage) -> WholeImage:
    tree = {path: thing for path, thing in image.tree.items() if path not in ENGINES_OWN}
    return WholeImage(tree=tree, settings=image.settings)


def _layered(digest: str, settings: Mapping[str, str], layers: Sequence[Layer]) -> LayeredImage:
    return LayeredImage(
        digest=digest,
        settings=settings,
        layers=tuple(layers),
        packages=packages_of([layer.contents for layer in layers]),
    )


def _settings_told(told: Mapping[str, Any]) -> dict[str, str]:
    return settings_of(told.get("Config") or {}, _platform(told, "Os", "Architecture"))


def _platform(told: Mapping[str, Any], system: str, processor: str) -> str:
    return f"{told.get(system, '')}/{told.get(processor, '')}"


@contextmanager
def _opened(layer: LayerOnDisk) -> Iterator[BinaryIO]:
    """The tar in *layer*, whose digest must be right when it was read to its end."""
    try:
        with open_layer(layer.path) as stream:
            hashed = _Hashed(stream)
            yield cast(BinaryIO, hashed)
            found = hashed.digest()
    except DAMAGED as error:
        raise VerificationFailed(f"layer {layer.digest} cannot be read: {error}", hint=_VERIFY) from error
    if found != layer.diff_id:
        raise VerificationFailed(f"layer {layer.digest} holds {found}, not {layer.diff_id}", hint=_VERIFY)


_VERIFY = "`verify` tells all that is wrong with the layout"


class _Hashed:
    """A stream that takes the digest of what is read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._hash = stream, hashlib.sha256()

    def read(self, size: int) -> bytes:
        """As a file."""
        data = self._stream.read(size)
        self._hash.update(data)
        return data

    def digest(self) -> str:
        """Of all, for what nobody read is read now."""
        while self.read(_PIECE):
            pass
        return f"sha256:{self._hash.hexdigest()}"
