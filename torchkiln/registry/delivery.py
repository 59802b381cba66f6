"""Delivers a blob to a repository: finds it there, mounts it from another repository, or uploads it.

HEAD ── 200: it exists
POST ?mount=&from= ── 201: mounted
                   ── 202: not mounted, but an upload has begun
                       then it is sent

A file is hashed while it is sent; the last piece of a damaged file is not sent.
An upload resumes after a broken connection:

POST ── 202 ─► PATCH ── 202 ─► PUT ?digest= ── 201: done
                ╰─ broken ─► GET ── 204, Range ─► PATCH from there
                              ╰─ 404, 416: the upload is unknown ─► POST
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlencode

from torchkiln.errors import RegistryError, VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.oci.image import digest_of
from torchkiln.registry.messages import Body, HttpRequest, HttpResponse, Scopes
from torchkiln.registry.reference import Repository
from torchkiln.registry.session import WRITES, Registry
from torchkiln.util.http.retry import GivenUp, Progress, Transient, retry
from torchkiln.util.http.session import LEAST
from torchkiln.util.strict_json import open_plain

Outcome = Literal["there", "mounted", "sent"]
REBUILD = "run: torchkiln cache verify --repair; then build the image again"
_PIECE = 1 << 20
_SMALL = 1 << 20  # bytes up to which a blob is sent in one request with its digest
_RESTARTS = 2  # of an upload after an unexpected status
_BYTES = {"Content-Type": "application/octet-stream"}
_RANGE = re.compile(r"(?:bytes=)?0-(\d{1,18})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Blob:
    """A blob to upload: a file, or a small document in memory."""

    digest: Digest
    size: int
    source: Path | bytes = field(repr=False)

    @property
    def what(self) -> str:
        """The name of the blob in error messages."""
        return f"blob {self.digest[:19]}"

    def pieces(self, start: int) -> Iterator[bytes]:
        """The blob from *start* on; the last piece of a file only after the hash of the whole was checked.

        :raises VerificationFailed: size or digest of the file do not match.
        """
        if isinstance(self.source, bytes):
            yield self.source[start:]
            return
        digest, at, held = hashlib.sha256(), 0, b""
        try:
            with open_plain(self.source, follow=False) as file:
                while piece := file.read(min(_PIECE, start - at) if at < start else _PIECE):
                    digest.update(piece)
                    at += len(piece)
                    if at > start:
                        if held:
                            yield held
                        held = piece
        except OSError as error:
            raise VerificationFailed(f"{self.source}: {error.strerror}", hint=REBUILD) from error
        if at != self.size or f"sha256:{digest.hexdigest()}" != self.digest:
            raise VerificationFailed(
                f"{self.source}: checksum mismatch; the upload was not completed", hint=REBUILD
            )
        if held:
            yield held


def document(data: bytes) -> Blob:
    return Blob(digest=digest_of(data), size=len(data), source=data)


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
        self.registry, self.base = registry, f"/v2/{repository.name}/blobs"
        self.scopes: Scopes = (f"repository:{repository.name}:pull,push",)

    def deliver(self, blob: Blob, sources: tuple[str, ...], on_progress: Callable[[int], None]) -> Delivered:
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
        sent = Upload(self, blob, place, on_progress).run()
        return Delivered(digest=blob.digest, size=blob.size, how="sent", sent=sent)

    def is_there(self, blob: Blob) -> bool:
        """Whether the repository has *blob*, by its digest and size.

        :raises RegistryError: the request failed.
        """
        address = f"{self.base}/{blob.digest}"
        request = HttpRequest(method="HEAD", url=address, what=blob.what, scopes=self.scopes)
        response = self.registry.request(request)
        if response.status == 404:
            return False
        if response.status != 200:
            raise self.registry.http_error(blob.what, response)
        self.registry.check_digest(response, blob.digest, blob.what)
        # Some registries omit the length; another length means that the blob is incomplete.
        length = response.headers.get("Content-Length", "")
        return not (length.isascii() and length.isdigit()) or int(length) in (0, blob.size)

    def _mount(self, blob: Blob, source: str) -> tuple[bool, str | None]:
        """Whether *blob* was mounted; if not, the URL of the upload that the registry began, or None."""
        query = urlencode({"mount": blob.digest, "from": source})
        scopes, address = (*self.scopes, f"repository:{source}:pull"), f"{self.base}/uploads/?{query}"
        try:
            response = self.registry.request(
                HttpRequest(method="POST", url=address, what=blob.what, scopes=scopes)
            )
        except RegistryError:  # no read access to *source*: upload instead
            return False, None
        if response.status == 201:
            self.registry.check_digest(response, blob.digest, blob.what)
            return True, None
        return False, self.registry.location(response, blob.what) if response.status == 202 else None


class _Restart(Exception):
    """The upload failed with an unexpected status: begin another."""

    def __init__(self, response: HttpResponse) -> None:
        super().__init__(response.status)
        self.response = response


class Upload:
    """One upload. `place`: its current URL, or None to begin one."""

    def __init__(
        self, delivery: Delivery, blob: Blob, place: str | None, on_progress: Callable[[int], None]
    ) -> None:
        self._registry, self._scopes, self._base = delivery.registry, delivery.scopes, delivery.base
        self._blob, self._place, self._on_progress = blob, place, on_progress
        self._is_there = delivery.is_there
        self._have = 0  # bytes that the registry has
        self._reported = self._sent = self._restarts = 0
        self._failed = False  # whether to read the state of the upload before the next attempt

    def run(self) -> int:
        """Send the blob; returns the number of bytes sent."""
        try:
            progress = Progress(lambda: self._have, LEAST)
            retry(self._attempt, sleep=self._registry.sleep, max_seconds=WRITES, progress=progress)
        except GivenUp as error:
            raise self._registry.unavailable(self._blob.what, error) from error
        except VerificationFailed:
            self._abandon()
            raise
        return self._sent

    def _attempt(self) -> None:
        if self._failed:
            self._failed = False
            if self._is_there(self._blob):  # the upload was complete, only the response was lost
                return
            self._read_state()
        try:
            self._with_restarts()
        except Transient as error:
            self._failed = not error.at_once  # after a 401 the state of the upload is known
            raise

    def _with_restarts(self) -> None:
        while True:
            try:
                return self._try()
            except _Restart as error:
                self._place, self._restarts = None, self._restarts + 1
                if self._restarts > _RESTARTS:
                    raise self._registry.http_error(self._blob.what, error.response) from error

    def _try(self) -> None:
        blob = self._blob
        if self._place is None:
            self._place, self._have = self._begin(), 0
        if blob.size <= _SMALL and self._have == 0:
            self._complete(b"".join(blob.pieces(0)))
            return
        if self._have < blob.size:
            self._send_rest()
        else:
            for _ in blob.pieces(0):  # earlier attempts sent all of it: check the file's digest
                pass
        self._complete(None)

    def _begin(self) -> str:
        response = self._registry.request(self._request("POST", f"{self._base}/uploads/"))
        if response.status != 202:
            raise self._registry.http_error(self._blob.what, response)
        return self._registry.location(response, self._blob.what)

    def _send_rest(self) -> None:
        """Send all missing bytes in one request; from the start without Content-Range, as Docker does."""
        assert self._place is not None
        blob, start = self._blob, self._have
        part = {"Content-Range": f"{start}-{blob.size - 1}"} if start else {}
        rest = Body(blob.size - start, lambda: self._counted(start))
        response = self._registry.request_once(
            replace(self._request("PATCH", self._place), headers={**_BYTES, **part}, body=rest)
        )
        if response.status in (401, 403, 405, 413):
            raise self._registry.http_error(blob.what, response)
        if response.status not in (201, 202, 204):
            raise _Restart(response)
        self._place, self._have = self._registry.location(response, blob.what), blob.size

    def _complete(self, data: bytes | None) -> None:
        assert self._place is not None
        blob = self._blob
        to = f"{self._place}{'&' if '?' in self._place else '?'}{urlencode({'digest': blob.digest})}"
        request = self._request("PUT", to)
        response = self._registry.request_once(
            replace(request, headers=_BYTES, body=data) if data else request
        )
        if response.status in (401, 403, 405, 413):
            raise self._registry.http_error(blob.what, response)
        if response.status not in (201, 204):
            raise _Restart(response)
        self._registry.check_digest(response, blob.digest, blob.what)
        if data:
            self._count(0, len(data))

    def _read_state(self) -> None:
        """Read how many bytes the registry has; if the upload is unknown, the next attempt begins another."""
        if self._place is None:
            return
        response = self._registry.request(self._request("GET", self._place))
        if response.status not in (200, 202, 204):
            self._place = None
            return
        if "Location" in response.headers:
            self._place = self._registry.location(response, self._blob.what)
        found = _RANGE.fullmatch(response.headers.get("Range", "0-0"))
        # The range of received bytes; an empty upload has "0-0" too.
        self._have = int(found[1]) + 1 if found and int(found[1]) else 0
        if self._have > self._blob.size:
            self._place = None

    def _abandon(self) -> None:
        """Delete the upload; a registry that does not support that removes it later."""
        if self._place is not None:
            try:
                self._registry.request_once(self._request("DELETE", self._place))
            except (Transient, RegistryError):
                return

    def _request(self, method: str, url: str) -> HttpRequest:
        return HttpRequest(method=method, url=url, what=self._blob.what, scopes=self._scopes)

    def _counted(self, start: int) -> Iterator[bytes]:
        at = start
        for piece in self._blob.pieces(start):
            yield piece
            at += len(piece)
            self._count(at - len(piece), len(piece))

    def _count(self, start: int, count: int) -> None:
        self._sent += count
        if (more := start + count - self._reported) > 0:
            self._reported += more
            self._on_progress(more)
