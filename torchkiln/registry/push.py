"""ImageOnDisk → Pushed: blobs side by side, then the manifest by its digest, tags last.

Whoever pulls a tag finds all of it, whenever the push ended. `BlobUploads` takes blobs one by one, so that
those of a build that still runs can go ahead.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol

from torchkiln.errors import RegistryError, VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.oci.documents import LIMIT
from torchkiln.oci.image import digest_of
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.registry.body import REBUILD, Blob
from torchkiln.registry.delivery import Delivered, Delivery, How
from torchkiln.registry.history import History
from torchkiln.registry.naming import put
from torchkiln.registry.reference import Repository, parse_tag
from torchkiln.registry.session import Registry
from torchkiln.util.strict_json import read_file

JOBS = 4


class Watcher(Protocol):
    """Hears of the work, from several threads; sizes are bytes."""

    def begin(self, work: Literal["push"], name: str, total: int) -> None: ...

    def advance(self, work: Literal["push"], name: str, count: int) -> None: ...

    def end(self, work: Literal["push"], name: str) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class PushOptions:
    """How blobs are pushed, and who hears of it."""

    watcher: Watcher
    history: History
    mount_from: tuple[str, ...] = ()  # more repositories of the same registry that may have some of them
    jobs: int = JOBS


@dataclass(frozen=True, kw_only=True, slots=True)
class Pushed:
    """An image in a registry."""

    repository: Repository
    digest: Digest
    manifest: bytes = field(repr=False)  # as it was pushed
    tags: tuple[str, ...]
    blobs: tuple[Delivered, ...]  # in the order in which they were handed in
    seconds: float

    @property
    def reference(self) -> str:
        """`registry.example/team/app@sha256:…`: what nobody can move."""
        return f"{self.repository}@{self.digest}"

    @property
    def bytes_sent(self) -> int:
        """Of blobs, those of cut attempts too."""
        return sum(blob.sent for blob in self.blobs)

    def count(self, how: How) -> int:
        """How many blobs got there so."""
        return sum(blob.how == how for blob in self.blobs)


def push(
    image: ImageOnDisk,
    registry: Registry,
    repository: Repository,
    options: PushOptions,
    *,
    tags: Sequence[str] = (),
) -> Pushed:
    """Bring *image* into *repository*, under its digest and *tags*.

    :raises ConfigError: a tag is none.
    :raises VerificationFailed: the layout's bytes are not what they are called; no tag was set.
    :raises RegistryError: the registry refuses, or cannot be reached; no tag was set, unless it says so.
    """
    for tag in tags:
        parse_tag(tag)
    manifest = _manifest(image)
    with BlobUploads(registry, repository, options) as uploads:
        for layer in sorted(image.layers, key=lambda layer: -layer.size):  # the longest is not begun last
            uploads.submit(layer.digest, layer.path, layer.size)
        uploads.submit(image.config_digest, image.config_path)
        return uploads.finish(manifest, tags, digest=image.manifest)


def _manifest(image: ImageOnDisk) -> bytes:
    """Its bytes, read once.

    :raises VerificationFailed: they cannot be read, or are another image's.
    """
    try:
        data = read_file(image.manifest_path, LIMIT, follow=False)
    except OSError as error:
        raise VerificationFailed(f"{image.manifest_path}: {error.strerror}", hint=REBUILD) from error
    if digest_of(data) != image.manifest:
        raise VerificationFailed(
            f"{image.manifest_path}: checksum mismatch: its bytes are {digest_of(data)}", hint=REBUILD
        )
    return data


class BlobUploads:
    """Uploads of one image's blobs under way. Leaving the context with an error ends them all at once."""

    def __init__(self, registry: Registry, repository: Repository, options: PushOptions) -> None:
        self._registry, self._repository, self._options = registry, repository, options
        self._delivery = Delivery(registry, repository)
        self._pool = ThreadPoolExecutor(options.jobs, "push")
        self._under_way: dict[Digest, Future[Delivered]] = {}
        self._guard = threading.Lock()
        self._error: Exception | None = None  # the first
        self._began = time.monotonic()

    def __enter__(self) -> BlobUploads:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._registry.stop()
        self._pool.shutdown(cancel_futures=True)

    def submit(self, digest: Digest, path: Path, size: int | None = None) -> None:
        """Send the blob at *path* as soon as a thread is free; what is under way is not sent twice.

        :raises VerificationFailed: it is not there, or has another *size*.
        """
        try:
            found = path.stat().st_size
        except OSError as error:
            raise VerificationFailed(f"{path}: {error.strerror}", hint=REBUILD) from error
        if size is not None and found != size:
            raise VerificationFailed(
                f"{path}: {found} bytes, and its manifest says {size}",
                hint=REBUILD,
            )
        with self._guard:
            if digest not in self._under_way:
                blob = Blob(digest=digest, path=path, size=found)
                self._under_way[digest] = self._pool.submit(self._unless_failed, blob)

    def settle(self) -> tuple[Delivered, ...]:
        """Wait until all that was submitted is there, in the order in which it was.

        :raises VerificationFailed: a blob is not what it is called.
        :raises RegistryError: the registry refuses, or cannot be reached.
        """
        futures = tuple(self._under_way.values())
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in done:  # a failed one; leaving the context ends the others
            if error := future.exception():
                raise self._error or error
        return tuple(future.result() for future in futures)

    def finish(self, manifest: bytes, tags: Sequence[str], *, digest: Digest | None = None) -> Pushed:
        """Wait for the blobs, then put *manifest*, by its digest and then under each of *tags*.

        :param digest: what the manifest's must be.
        :raises VerificationFailed: a blob or the manifest is not what it is called, or a blob that it names
            was not submitted.
        :raises RegistryError: the registry refuses, or cannot be reached.
        """
        ours = digest_of(manifest)
        if digest not in (None, ours):
            raise VerificationFailed(f"the manifest is not the one that is called {digest}")
        self._demand_all(manifest)
        blobs = self.settle()
        self._put(manifest, ours, "no tag was set")
        for number, tag in enumerate(tags):
            set_before = f"set before it: {', '.join(tags[:number])}" if number else "no tag was set"
            self._put(manifest, tag, set_before)
        return Pushed(
            repository=self._repository,
            digest=ours,
            manifest=manifest,
            tags=tuple(tags),
            blobs=blobs,
            seconds=time.monotonic() - self._began,
        )

    def _unless_failed(self, blob: Blob) -> Delivered:
        """A thread that failed is free at once, before anybody heard of it: it begins nothing more."""
        if self._error is not None:
            raise self._error
        try:
            return self._deliver(blob)
        except Exception as error:
            self._error = self._error or error
            raise

    def _deliver(self, blob: Blob) -> Delivered:
        watcher, history = self._options.watcher, self._options.history
        watcher.begin("push", blob.digest, blob.size)
        known = history.sources(blob.digest, self._repository)
        sources = tuple(
            name
            for name in dict.fromkeys((*self._options.mount_from, *known))
            if name != self._repository.name
        )
        delivered = self._delivery.deliver(
            blob, sources, lambda count: watcher.advance("push", blob.digest, count)
        )
        history.note(blob.digest, self._repository)
        watcher.end("push", blob.digest)
        return delivered

    def _demand_all(self, manifest: bytes) -> None:
        document = json.loads(manifest)
        named = {entry["digest"] for entry in (document["config"], *document["layers"])}
        if lacking := sorted(named - self._under_way.keys()):
            raise VerificationFailed(f"the manifest names blobs that were not sent: {', '.join(lacking)}")

    def _put(self, manifest: bytes, name: str, so_far: str) -> None:
        try:
            put(self._registry, self._repository, manifest, name)
        except RegistryError as error:
            raise RegistryError(f"{error.message}; {so_far}", hint=error.hint) from error
