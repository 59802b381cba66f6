"""Blob → Delivered: seen in the repository, mounted from a neighbour, or uploaded.

HEAD ── 200: there
POST ?mount=&from= ── 201: mounted
                   ── 202: not so, but an upload has begun
upload.py: sent
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlencode

from torchkiln.errors import RegistryError
from torchkiln.model.digest import Digest
from torchkiln.registry.body import Blob, Held
from torchkiln.registry.reference import Repository
from torchkiln.registry.request import HttpRequest
from torchkiln.registry.session import Registry
from torchkiln.registry.tokens import Scopes
from torchkiln.registry.upload import Upload

How = Literal["there", "mounted", "sent"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivered:
    """How a blob got there. `sent`: the bytes that this took, those of cut attempts too."""

    digest: Digest
    size: int
    how: How
    sent: int = 0
    source: str = ""  # the repository that it was mounted from


class Delivery:
    """Brings blobs into one repository; safe for threads."""

    def __init__(self, registry: Registry, repository: Repository) -> None:
        self._registry, self._base = registry, f"/v2/{repository.name}/blobs"
        self._scopes: Scopes = (f"repository:{repository.name}:pull,push",)

    def deliver(self, blob: Blob | Held, sources: tuple[str, ...], tell: Callable[[int], None]) -> Delivered:
        """See to it that *blob* is there.

        :param sources: repositories of this registry that may have it.
        :param tell: hears of bytes that have gone out, each once.
        :raises RegistryError: it cannot be brought there, or the registry says that it got something else.
        :raises VerificationFailed: the file is not what its name says; it was not completed there.
        """
        if self._is_there(blob):
            tell(blob.size)
            return Delivered(digest=blob.digest, size=blob.size, how="there")
        place: str | None = None
        for source in sources:
            mounted, place = self._mount(blob, source)
            if mounted:
                tell(blob.size)
                return Delivered(digest=blob.digest, size=blob.size, how="mounted", source=source)
            if place:
                break  # an upload has begun instead; a second one would stay behind
        sent = Upload(self._registry, self._scopes, self._base, blob, place, self._is_there, tell).run()
        return Delivered(digest=blob.digest, size=blob.size, how="sent", sent=sent)

    def _is_there(self, blob: Blob | Held) -> bool:
        address = f"{self._base}/{blob.digest}"
        request = HttpRequest(method="HEAD", url=address, what=blob.what, scopes=self._scopes)
        answer = self._registry.persist(request)
        if answer.status == 404:
            return False
        if answer.status != 200:
            raise self._registry.refused(blob.what, answer)
        self._registry.demand_digest(answer, blob.digest, blob.what)
        # Some registries leave the length out; one that tells another has half of it.
        length = answer.headers.get("Content-Length", "")
        return not (length.isascii() and length.isdigit()) or int(length) in (0, blob.size)

    def _mount(self, blob: Blob | Held, source: str) -> tuple[bool, str | None]:
        """Whether it is mounted; if not, the upload that the registry has begun instead, if it did."""
        query = urlencode({"mount": blob.digest, "from": source})
        scopes, address = (*self._scopes, f"repository:{source}:pull"), f"{self._base}/uploads/?{query}"
        try:
            answer = self._registry.persist(
                HttpRequest(method="POST", url=address, what=blob.what, scopes=scopes)
            )
        except RegistryError:  # we may not read there: no reason not to push here
            return False, None
        if answer.status == 201:
            self._registry.demand_digest(answer, blob.digest, blob.what)
            return True, None
        return False, self._registry.location(answer, blob.what) if answer.status == 202 else None
