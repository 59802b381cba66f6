"""A manifest in a registry → the image in an OCI layout: its documents, and its layers side by side."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, Protocol

from torchkiln.errors import BuildFailed, VerificationFailed
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.oci.image import MANIFEST_TYPE
from torchkiln.oci.layout import ImageOnDisk, write_documents
from torchkiln.registry.reading import Document, Reading

_LIMIT = 4 << 20  # bytes of a config
_JOBS = 4


class Watcher(Protocol):
    """Hears of the work, from several threads; sizes are bytes."""

    def begin(self, work: Literal["download"], name: str, total: int) -> None: ...

    def advance(self, work: Literal["download"], name: str, count: int) -> None: ...

    def end(self, work: Literal["download"], name: str) -> None: ...


def documents(reading: Reading, found: Document, layout: Path, ref: str) -> ImageOnDisk:
    """The image whose manifest was *found*, as *ref* in *layout*, without its layers.

    :raises VerificationFailed: it is no image's manifest, or its config is not what its digest says.
    :raises RegistryError: the registry refuses, or cannot be reached.
    """
    told = found.told
    if found.media_type != MANIFEST_TYPE or told.get("mediaType", MANIFEST_TYPE) != MANIFEST_TYPE:
        raise VerificationFailed(
            f"{reading.repository}: {ref} is no image of ours but {found.media_type[:80]!r}",
            hint="name one that `publish` pushed: `catalog` lists them",
        )
    try:
        config = parse_digest(told["config"]["digest"])
    except (LookupError, TypeError, ValueError):
        raise VerificationFailed(f"{reading.repository}: {ref}: its manifest names no config") from None
    data = reading.small(config, _LIMIT)
    return write_documents(layout, ref, found.data, data).image(ref)


def layers(reading: Reading, image: ImageOnDisk, watcher: Watcher, *, jobs: int = _JOBS) -> None:
    """The layers of *image* to where its layout looks for them; those that are there are not fetched.

    :raises VerificationFailed: a layer is not what its digest says.
    :raises RegistryError: the registry refuses, or cannot be reached.
    :raises BuildFailed: no space.
    """
    wanted = {layer.digest: layer for layer in image.layers if not layer.path.exists()}
    with ThreadPoolExecutor(jobs, "pull") as pool:
        futures = [
            pool.submit(_layer, reading, layer.digest, layer.size, layer.path, watcher)
            for layer in sorted(wanted.values(), key=lambda layer: -layer.size)
        ]
        try:
            for future in futures:
                future.result()
        except BaseException:  # a failure, or Ctrl-C: the other threads would go on for gigabytes
            reading.registry.stop()
            raise


def _layer(reading: Reading, digest: Digest, size: int, path: Path, watcher: Watcher) -> None:
    watcher.begin("download", digest[:19], size)
    try:
        reading.fetch(digest, size, path, lambda count: watcher.advance("download", digest[:19], count))
    except OSError as error:
        raise BuildFailed(f"{path}: {error.strerror}", hint="make room: an image has 3 to 7 GB") from error
    watcher.end("download", digest[:19])
