"""Pushes an image: blobs in parallel, then the manifest by its digest, tags last. Deletes tags.

In this order, a tag never refers to an incomplete image, even if the push is interrupted. `BlobUploads` takes
blobs one by one, so that a build can upload layers before it ends.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from torchkiln.errors import RegistryError, VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.model.progress import Observer
from torchkiln.oci.documents import LIMIT
from torchkiln.oci.image import MANIFEST_TYPE, digest_of
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.registry.delivery import REBUILD, Blob, Delivered, Delivery, Outcome
from torchkiln.registry.messages import HttpRequest, HttpResponse
from torchkiln.registry.reference import Repository, parse_tag
from torchkiln.registry.session import Registry
from torchkiln.store.store import Store
from torchkiln.util.strict_json import read_file

JOBS = 4
_PUSHED = "pushed"
_MOUNTS = 3  # maximum repositories per blob; a mount needs only one


class History:
    """Records in the cache to which repositories a blob was pushed, so that the next push can mount it.

    A record is only a hint: a wrong one costs one request. Without a store nothing is recorded.
    """

    def __init__(self, store: Store | None) -> None:
        self._store = store

    def sources(self, digest: Digest, target: Repository) -> tuple[str, ...]:
        """The other repositories of *target*'s registry that have the blob, the latest first."""
        found = self._store.record(_PUSHED, _record(digest, target.host)) if self._store else None
        names = found.get("repositories") if found else None
        if not isinstance(names, list):
            return ()
        return tuple(name for name in names if isinstance(name, str) and name != target.name)

    def note(self, digest: Digest, target: Repository) -> None:
        """Record that the blob is in *target*."""
        if self._store is not None:
            names = (target.name, *self.sources(digest, target))[:_MOUNTS]
            record = {"registry": target.host, "blob": digest, "repositories": list(names)}
            if self._store.record(_PUSHED, key := _record(digest, target.host)) != record:
                self._store.put_record(_PUSHED, key, record)


def _record(digest: Digest, host: str) -> str:
    return hashlib.sha256(f"{host}\n{digest}".encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class PushOptions:
    observer: Observer
    history: History
    mount_from: tuple[str, ...] = ()  # more repositories of the registry to mount blobs from
    jobs: int = JOBS


@dataclass(frozen=True, kw_only=True, slots=True)
class Pushed:
    repository: Repository
    digest: Digest
    manifest: bytes = field(repr=False)  # as pushed
    tags: tuple[str, ...]
    blobs: tuple[Delivered, ...]  # in the order of `submit`
    seconds: float

    @property
    def reference(self) -> str:
        """`registry.example/team/app@sha256:…`, which cannot change."""
        return f"{self.repository}@{self.digest}"

    @property
    def bytes_sent(self) -> int:
        """The bytes sent for all blobs, including failed attempts."""
        return sum(blob.sent for blob in self.blobs)

    def count(self, how: Outcome) -> int:
        return sum(blob.how == how for blob in self.blobs)


def push(
    image: ImageOnDisk,
    registry: Registry,
    repository: Repository,
    options: PushOptions,
    *,
    tags: Sequence[str] = (),
) -> Pushed:
    """Push *image* to *repository*, under its digest and *tags*.

    :raises ConfigError: a tag is invalid.
    :raises VerificationFailed: a file of the layout does not match its digest; no tag was set.
    :raises RegistryError: a request failed; the message says which tags were set.
    """
    for tag in tags:
        parse_tag(tag)
    manifest = _manifest(image)
    with BlobUploads(registry, repository, options) as uploads:
        for layer in sorted(image.layers, key=lambda layer: -layer.size):  # the largest first
            uploads.submit(layer.digest, layer.path, layer.size)
        uploads.submit(image.config_digest, image.config_path)
        return uploads.finish(manifest, tags, digest=image.manifest)


def _manifest(image: ImageOnDisk) -> bytes:
    """The manifest, read once."""
    try:
        data = read_file(image.manifest_path, LIMIT, follow=False)
    except OSError as error:
        raise VerificationFailed(f"{image.manifest_path}: {error.strerror}", hint=REBUILD) from error
    if digest_of(data) != image.manifest:
        raise VerificationFailed(
            f"{image.manifest_path}: checksum mismatch: the file has {digest_of(data)}", hint=REBUILD
        )
    return data


class BlobUploads:
    """Uploads of one image's blobs. Leaving the context with an error stops them all."""

    def __init__(self, registry: Registry, repository: Repository, options: PushOptions) -> None:
        self._registry, self._repository, self._options = registry, repository, options
        self._delivery = Delivery(registry, repository)
        self._pool = ThreadPoolExecutor(options.jobs, "push")
        self._under_way: dict[Digest, Future[Delivered]] = {}
        self._guard = threading.Lock()
        self._error: Exception | None = None  # the first error of a blob
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
        """Send the blob at *path* as soon as a thread is free, once for each digest.

        :raises VerificationFailed: the file does not exist, or has another *size*.
        """
        try:
            found = path.stat().st_size
        except OSError as error:
            raise VerificationFailed(f"{path}: {error.strerror}", hint=REBUILD) from error
        if size is not None and found != size:
            raise VerificationFailed(
                f"{path}: size mismatch: {found} bytes, {size} in the manifest", hint=REBUILD
            )
        with self._guard:
            if digest not in self._under_way:
                blob = Blob(digest=digest, source=path, size=found)
                self._under_way[digest] = self._pool.submit(self._unless_failed, blob)

    def settle(self) -> tuple[Delivered, ...]:
        """Wait for all submitted blobs; returns them in the order of `submit`.

        :raises VerificationFailed: a blob does not match its digest.
        :raises RegistryError: a request failed.
        """
        futures = tuple(self._under_way.values())
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in done:  # if one failed, the error leaves the context, which stops the others
            if error := future.exception():
                raise self._error or error
        return tuple(future.result() for future in futures)

    def finish(self, manifest: bytes, tags: Sequence[str], *, digest: Digest | None = None) -> Pushed:
        """Wait for the blobs, then put *manifest*, by its digest and then under each of *tags*.

        :param digest: the expected digest of the manifest.
        :raises VerificationFailed: a blob or the manifest does not match its digest, or a blob is missing.
        :raises RegistryError: a request failed.
        """
        ours = digest_of(manifest)
        if digest not in (None, ours):
            raise VerificationFailed(f"checksum mismatch: the manifest is {ours}, not {digest}")
        self._demand_all(manifest)
        blobs = self.settle()
        self._put(manifest, ours, "no tag was set")
        for number, tag in enumerate(tags):
            done = f"tags that were set: {', '.join(tags[:number])}" if number else "no tag was set"
            self._put(manifest, tag, done)
        return Pushed(
            repository=self._repository,
            digest=ours,
            manifest=manifest,
            tags=tuple(tags),
            blobs=blobs,
            seconds=time.monotonic() - self._began,
        )

    def _unless_failed(self, blob: Blob) -> Delivered:
        """Deliver the blob, unless another failed: the pool can start this call before it is shut down."""
        if self._error is not None:
            raise self._error
        try:
            return self._deliver(blob)
        except Exception as error:
            self._error = self._error or error
            raise

    def _deliver(self, blob: Blob) -> Delivered:
        observer, history = self._options.observer, self._options.history
        observer.begin("push", blob.digest, blob.size)
        known = history.sources(blob.digest, self._repository)
        sources = tuple(
            name
            for name in dict.fromkeys((*self._options.mount_from, *known))
            if name != self._repository.name
        )
        delivered = self._delivery.deliver(
            blob, sources, lambda count: observer.advance("push", blob.digest, count)
        )
        history.note(blob.digest, self._repository)
        observer.end("push", blob.digest)
        return delivered

    def _demand_all(self, manifest: bytes) -> None:
        document = json.loads(manifest)
        named = {entry["digest"] for entry in (document["config"], *document["layers"])}
        if lacking := sorted(named - self._under_way.keys()):
            raise VerificationFailed(f"blobs of the manifest were not sent: {', '.join(lacking)}")

    def _put(self, manifest: bytes, name: str, done: str) -> None:
        try:
            put(self._registry, self._repository, manifest, name)
        except RegistryError as error:
            raise RegistryError(f"{error.message}; {done}", hint=error.hint) from error


def put(
    registry: Registry, repository: Repository, manifest: bytes, name: str, *, media_type: str = MANIFEST_TYPE
) -> HttpResponse:
    """Put *manifest* under *name*, its digest or a tag.

    :raises RegistryError: the request failed, or the registry reports another digest.
    """
    what = f"manifest {name[:19]}" if name.startswith("sha256:") else f"tag {name}"
    response = registry.request(
        HttpRequest(
            method="PUT",
            url=f"/v2/{repository.name}/manifests/{name}",
            what=what,
            scopes=(f"repository:{repository.name}:pull,push",),
            headers={"Content-Type": media_type},
            body=manifest,
        )
    )
    if response.status not in (200, 201, 202):
        raise registry.http_error(what, response)
    registry.check_digest(response, digest_of(manifest), what)
    return response


def delete_tag(registry: Registry, repository: Repository, tag: str) -> bool:
    """Delete *tag*; returns False if the registry does not support that.

    :raises RegistryError: access is denied, or the request failed.
    """
    response = registry.request(
        HttpRequest(
            method="DELETE",
            url=f"/v2/{repository.name}/manifests/{tag}",
            what=f"tag {tag}",
            scopes=(f"repository:{repository.name}:pull,push,delete",),
        )
    )
    if response.status in (401, 403):
        raise registry.http_error(f"tag {tag}", response)
    return response.status in (202, 200, 204, 404)
