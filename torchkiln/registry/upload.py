"""Blob → one upload of it, from POST to PUT, and gone on with after a cut.

POST ── 202 ─► PATCH ── 202 ─► PUT ?digest= ── 201: done
                ╰─ cut ─► GET ── 204, Range ─► PATCH from there
                           ╰─ 404, 416: the registry has forgotten ─► POST
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from urllib.parse import urlencode

from torchkiln.errors import RegistryError, VerificationFailed
from torchkiln.registry.answer import Answer
from torchkiln.registry.body import Blob, Held, Rest
from torchkiln.registry.request import HttpRequest
from torchkiln.registry.session import Registry
from torchkiln.registry.tokens import Scopes
from torchkiln.util.http.retry import GivenUp, Progress, Transient, retry

_SMALL = 1 << 20  # bytes up to which a blob goes in one request with its digest
_AFRESH = 2  # times that a blob is sent again after an answer that should not come
_BYTES = {"Content-Type": "application/octet-stream"}
_RANGE = re.compile(r"(?:bytes=)?0-(\d{1,18})")


class _Afresh(Exception):
    """This upload came to nothing: another one may do better."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class Upload:
    """One blob on its way. `place` is the upload's present address; `have` what the registry holds of it."""

    def __init__(
        self,
        registry: Registry,
        scopes: Scopes,
        base: str,
        blob: Blob | Held,
        place: str | None,
        is_there: Callable[[Blob | Held], bool],
        tell: Callable[[int], None],
    ) -> None:
        self._registry, self._scopes, self._base, self._blob = registry, scopes, base, blob
        self._place, self._is_there, self._tell = place, is_there, tell
        self._have, self._told, self._sent, self._afresh = 0, 0, 0, 0
        self._failed = False  # whether to ask what the registry holds before the next attempt

    def run(self) -> int:
        """Send it; returns the bytes that went out."""
        try:
            retry(self._attempt, sleep=self._registry.rest, progress=Progress(lambda: self._have))
        except GivenUp as error:
            raise self._registry.lost(self._blob.what, str(error)) from error
        except VerificationFailed:
            self._abandon()
            raise
        return self._sent

    def _attempt(self) -> None:
        if self._failed:
            self._failed = False
            if self._is_there(self._blob):  # it was complete, and only the answer got lost
                return
            self._look()
        try:
            self._begin_again()
        except Transient as error:
            self._failed = not error.at_once  # after a 401, what we know of the upload holds
            raise

    def _begin_again(self) -> None:
        """`_try`, and again after answers that should not come."""
        while True:
            try:
                return self._try()
            except _Afresh as error:
                self._place, self._afresh = None, self._afresh + 1
                if self._afresh > _AFRESH:
                    raise self._registry.refused(self._blob.what, error.answer) from error

    def _try(self) -> None:
        blob = self._blob
        if self._place is None:
            self._place, self._have = self._begin(), 0
        if blob.size <= _SMALL and self._have == 0:
            self._complete(b"".join(blob.pieces(0)))
            return
        if self._have < blob.size:
            self._pour()
        else:
            for _ in blob.pieces(0):  # all of it got there by tries that were cut: is it what we think?
                pass
        self._complete(None)

    def _begin(self) -> str:
        answer = self._registry.persist(self._request("POST", f"{self._base}/uploads/"))
        if answer.status != 202:
            raise self._registry.refused(self._blob.what, answer)
        return self._registry.location(answer, self._blob.what)

    def _pour(self) -> None:
        """All that lacks, in one request; from the start without a range, as Docker's own: all take that."""
        assert self._place is not None
        blob, start = self._blob, self._have
        part = {"Content-Range": f"{start}-{blob.size - 1}"} if start else {}
        rest = Rest(blob.size - start, lambda: self._counted(start))
        answer = self._registry.ask(
            replace(self._request("PATCH", self._place), headers={**_BYTES, **part}, body=rest)
        )
        if answer.status in (401, 403, 405, 413):
            raise self._registry.refused(blob.what, answer)
        if answer.status not in (201, 202, 204):
            raise _Afresh(answer)
        self._place, self._have = self._registry.location(answer, blob.what), blob.size

    def _complete(self, data: bytes | None) -> None:
        assert self._place is not None
        blob = self._blob
        to = f"{self._place}{'&' if '?' in self._place else '?'}{urlencode({'digest': blob.digest})}"
        request = self._request("PUT", to)
        answer = self._registry.ask(replace(request, headers=_BYTES, body=data) if data else request)
        if answer.status in (401, 403, 405, 413):
            raise self._registry.refused(blob.what, answer)
        if answer.status not in (201, 204):
            raise _Afresh(answer)
        self._registry.demand_digest(answer, blob.digest, blob.what)
        if data:
            self._count(0, len(data))

    def _look(self) -> None:
        """Ask what the registry holds; where it has forgotten, or is confused, the next try begins anew."""
        if self._place is None:
            return
        answer = self._registry.persist(self._request("GET", self._place))
        if answer.status not in (200, 202, 204):
            self._place = None
            return
        if "Location" in answer.headers:
            self._place = self._registry.location(answer, self._blob.what)
        found = _RANGE.fullmatch(answer.headers.get("Range", "0-0"))
        # The last byte that is there; an empty upload has "0-0" too, for want of a better word.
        self._have = int(found[1]) + 1 if found and int(found[1]) else 0
        if self._have > self._blob.size:
            self._place = None

    def _abandon(self) -> None:
        """Tell the registry to forget it, politely: what it does not forget it will sweep one day."""
        if self._place is not None:
            try:
                self._registry.ask(self._request("DELETE", self._place))
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
        if (more := start + count - self._told) > 0:
            self._told += more
            self._tell(more)
