"""Delivers a blob to a repository: finds it there, mounts it from another repository, or uploads it.

HEAD ── 200: it exists
POST ?mount=&from= ── 201: mounted
                   ── 202: not mounted, but an upload has begun
upload.py: sent
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlencode

from torchkiln.errors import RegistryError
from torchkiln.model.digest import Digest
from torchkiln.registry.body import FileBlob, MemoryBlob
from torchkiln.registry.messages import HttpRequest, Scopes
from torchkiln.registry.reference import Repository
from torchkiln.registry.session import Registry
from torchkiln.registry.upload import Upload

Outcome = Literal["there", "mounted", "sent"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivered:
    """How a blob got into the repository. `sent`: bytes, including those of failed attempts."""

    digest: Digest
    size: int
    how: Outcome
    sent: int = 0
    source: str = ""  # the repository that it was mounted from


class Delivery:
    """Delivers blobs to one repository; thread-safe."""

    def __init__(self, registry: Registry, repository: Repository) -> None:
        self._registry, self._base = registry, f"/v2/{repository.name}/blobs"
        self._scopes: Scopes = (f"repository:{repository.name}:pull,push",)

    def deliver(
        self, blob: FileBlob | MemoryBlob, sources: tuple[str, ...], on_progress: Callable[[int], None]
    ) -> Delivered:
        """Mount or upload *blob*, unless the repository has it.

        :param sources: repositories of this registry that may have it.
        :param on_progress: called with the number of bytes that were sent; each byte counts once.
        :raises RegistryError: the upload failed, or the registry reports another digest.
        :raises VerificationFailed: the file does not match its digest; the upload is not completed.
        """
        if self.is_there(blob):
            on_progress(blob.size)
            return Delivered(digest=blob.digest, size=blob.size, how="there")
        place: str | None = None
        for source in sources:
            mounted, place = self._mount(blob, source)
            if mounted:
                on_progress(blob.size)
                return Delivered(digest=blob.digest, size=blob.size, how="mounted", source=source)
            if place:
                break  # the registry began an upload instead, which another mount request would leave unused
        sent = Upload(self._registry, self._scopes, self._base, blob, place, self.is_there, on_progress).run()
        return Delivered(digest=blob.digest, size=blob.size, how="sent", sent=sent)

    def is_there(self, blob: FileBlob | MemoryBlob) -> bool:
        """Whether the repository has *blob*, by its digest and size.

        :raises RegistryError: the request failed.
        """
        address = f"{self._base}/{blob.digest}"
        request = HttpRequest(method="HEAD", url=address, what=blob.what, scopes=self._scopes)
        response = self._registry.request(request)
        if response.status == 404:
            return False
        if response.status != 200:
            raise self._registry.http_error(blob.what, response)
        self._registry.check_digest(response, blob.digest, blob.what)
        # Some registries omit the length; another length means that the blob is incomplete.
        length = response.headers.get("Content-Length", "")
        return not (length.isascii() and length.isdigit()) or int(length) in (0, blob.size)

    def _mount(self, blob: FileBlob | MemoryBlob, source: str) -> tuple[bool, str | None]:
        """Whether *blob* was mounted; if not, the URL of the upload that the registry began, or None."""
        query = urlencode({"mount": blob.digest, "from": source})
        scopes, address = (*self._scopes, f"repository:{source}:pull"), f"{self._base}/uploads/?{query}"
        try:
            response = self._registry.request(
                HttpRequest(method="POST", url=address, what=blob.what, scopes=scopes)
            )
        except RegistryError:  # no read access to *source*: upload instead
            return False, None
        if response.status == 201:
            self._registry.check_digest(response, blob.digest, blob.what)
            return True, None
        return False, self._registry.location(response, blob.what) if response.status == 202 else None
