"""Uploads layers to a registry while the build still runs, for `build --ahead`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchkiln.model.layer import Blob
    from torchkiln.model.progress import Observer
    from torchkiln.registry.push import BlobUploads
    from torchkiln.store.store import Store


class LayerUploads:
    """Uploads each layer when it is finished; does nothing without *uploads*."""

    def __init__(self, store: Store, uploads: BlobUploads | None = None) -> None:
        self._store, self._uploads = store, uploads

    def take(self, layer: Blob) -> None:
        """Start to upload *layer* in the background."""
        if self._uploads:
            self._uploads.submit(layer.digest, self._store.blob(layer.digest), layer.size)

    def settled(self) -> dict[str, Any]:
        """Wait for all uploads; returns the fields to add to the output of --json.

        :raises RegistryError: the registry refuses, or cannot be reached; the image is built nevertheless.
        """
        if not self._uploads:
            return {}
        blobs = self._uploads.settle()
        return {"ahead": {"bytes_sent": sum(blob.sent for blob in blobs), "blobs": len(blobs)}}


@contextmanager
def uploads_ahead(
    target: str | None, plain_http: bool, store: Store, observer: Observer
) -> Iterator[LayerUploads]:
    """Uploads to *target*, REGISTRY/REPOSITORY; they end with the build.

    :raises ConfigError: *target* is not a repository.
    :raises RegistryError: the registry does not answer; this is checked before the build.
    """
    if target is None:
        yield LayerUploads(store)
        return
    from torchkiln.registry.connect import open_registry
    from torchkiln.registry.history import History
    from torchkiln.registry.push import BlobUploads, PushOptions
    from torchkiln.registry.reference import parse_repository

    repository = parse_repository(target)
    with open_registry(repository, os.environ, plain_http=plain_http) as registry:
        registry.check()
        options = PushOptions(observer=observer, history=History(store))
        with BlobUploads(registry, repository, options) as uploads:
            yield LayerUploads(store, uploads)
