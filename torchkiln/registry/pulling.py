"""Pulls an image into an OCI layout: its documents, and its layers in parallel."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torchkiln.errors import BuildFailed, VerificationFailed
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.model.progress import Observer
from torchkiln.oci.image import MANIFEST_TYPE
from torchkiln.oci.layout import ImageOnDisk, write_documents
from torchkiln.registry.reading import Document, RepositoryReader

_LIMIT = 4 << 20  # bytes of a config
_JOBS = 4


def documents(reading: RepositoryReader, found: Document, layout: Path, ref: str) -> ImageOnDisk:
    """Write the image with the manifest *found* to *layout*, as *ref* and without its layers.

    :raises VerificationFailed: it is not an image manifest, or the config does not match its digest.
    :raises RegistryError: a request failed.
    """
    manifest = found.json
    if found.media_type != MANIFEST_TYPE or manifest.get("mediaType", MANIFEST_TYPE) != MANIFEST_TYPE:
        raise VerificationFailed(
            f"{reading.repository}: {ref} is not an image that torchkiln published: its media type is "
            f"{found.media_type[:80]!r}",
            hint="name an image that `torchkiln publish` pushed: `torchkiln ls` lists them",
        )
    try:
        config = parse_digest(manifest["config"]["digest"])
    except (LookupError, TypeError, ValueError):
        raise VerificationFailed(f"{reading.repository}: {ref}: no config in the manifest") from None
    data = reading.small(config, _LIMIT)
    return write_documents(layout, ref, found.data, data).image(ref)


def layers(reading: RepositoryReader, image: ImageOnDisk, observer: Observer, *, jobs: int = _JOBS) -> None:
    """Download the layers of *image* that its layout lacks.

    :raises VerificationFailed: a layer does not match its digest.
    :raises RegistryError: a request failed.
    :raises BuildFailed: no space left.
    """
    missing = {layer.digest: layer for layer in image.layers if not layer.path.exists()}
    with ThreadPoolExecutor(jobs, "pull") as pool:
        futures = [
            pool.submit(_layer, reading, layer.digest, layer.size, layer.path, observer)
            for layer in sorted(missing.values(), key=lambda layer: -layer.size)
        ]
        try:
            for future in futures:
                future.result()
        except BaseException:  # a failure, or Ctrl-C: stop the downloads in the other threads
            reading.registry.stop()
            raise


def _layer(reading: RepositoryReader, digest: Digest, size: int, path: Path, observer: Observer) -> None:
    observer.begin("download", digest[:19], size)
    try:
        reading.fetch(digest, size, path, lambda count: observer.advance("download", digest[:19], count))
    except OSError as error:
        raise BuildFailed(
            f"{path}: {error.strerror}", hint="free disk space: an image has 3 to 7 GB"
        ) from error
    observer.end("download", digest[:19])
