"""One request → its answer, within limits: redirects, bytes of the body, time.

requests and urllib3 follow redirects, decompress and read chunks without a limit, so that is done here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests

from torchkiln.errors import RegistryError
from torchkiln.registry.answer import Answer
from torchkiln.registry.connections import Session
from torchkiln.registry.request import Body, HttpRequest
from torchkiln.registry.watch import Watch

_REDIRECTS = 10
_MOVED = frozenset({301, 302, 303, 307, 308})
_PIECE = 1 << 20  # bytes of a body that is taken at once
_CONNECT = 10.0  # seconds
_SILENCE = 120.0  # seconds for a piece of a blob, and for an answer to one: registries take long before a 201
_DOCUMENT = 20.0  # seconds for a document, from the request to its last byte


class Exchange:
    """Sends requests by one session; any number of threads."""

    def __init__(self, session: Session, watch: Watch, verify: Any, host: str) -> None:
        self._session, self._watch, self._verify, self._host = session, watch, verify, host

    def send(self, request: HttpRequest) -> Answer:
        """The answer, where the address or a redirect of a GET or HEAD leads.

        More bytes of a document than its limit are an error; of an error's text, no more are read.

        :raises RegistryError: a redirect that is not followed; a document that is longer or compressed.
        :raises OSError, HTTPError, RequestException, ValueError: as the libraries do.
        """
        url, left, body = request.url, dict(request.headers), request.body
        seconds = _DOCUMENT if request.reads and (request.quick or not request.into) else _SILENCE
        with self._watch.limit(seconds):
            for _ in range(_REDIRECTS + 1):
                with self._session.request(
                    request.method,
                    url,
                    headers=left,
                    data=body if body is None or isinstance(body, bytes) else self._watched(body),
                    timeout=(_CONNECT, seconds),
                    verify=self._verify,
                    stream=True,
                    allow_redirects=False,
                ) as response:
                    moved = response.status_code in _MOVED and "Location" in response.headers
                    if not (request.reads and moved):
                        return self._answer(request, response)
                    answer = _without_body(response)
                before, url = url, location(self._host, answer, request.what)
                if self._session.should_strip_auth(before, url):  # type: ignore[no-untyped-call]
                    left.pop("Authorization", None)
        raise RegistryError(
            f"{self._host}: {request.what}: more than {_REDIRECTS} redirects", hint="the registry is at fault"
        )

    def _answer(self, request: HttpRequest, response: requests.Response) -> Answer:
        limit, what = request.limit, request.what
        if request.into and response.status_code in (200, 206):
            request.into(response.status_code, self._pieces(response, renewed=not request.quick))
            return _without_body(response)
        good, body = response.status_code == 200, b""
        if response.headers.get("Content-Encoding", "").strip().lower() in ("", "identity"):
            body = b"".join(_bounded(response, limit + 1))
        elif good and request.method != "HEAD":
            raise self._wrong(what, "compressed, which was not asked for")
        if len(body) > limit and good:
            raise self._wrong(what, f"longer than {limit} bytes")
        return Answer(
            url=response.url, status=response.status_code, headers=response.headers, body=body[:limit]
        )

    def _pieces(self, response: requests.Response, *, renewed: bool) -> Iterator[bytes]:
        """A blob's; each in its own time if *renewed*."""
        # Not `stream`: it reads the line before a chunk whole, however long.
        while piece := response.raw.read(_PIECE, decode_content=False):
            if renewed:
                self._watch.renew(_SILENCE)
            yield piece

    def _watched(self, data: Body) -> _Watched:
        return _Watched(data, lambda: self._watch.renew(_SILENCE))

    def _wrong(self, what: str, why: str) -> RegistryError:
        return RegistryError(
            f"{self._host}: {what}: the answer is {why}",
            hint="the registry, or a proxy before it, is at fault",
        )


class _Watched:
    """A body each of whose pieces has its own time to be taken."""

    def __init__(self, data: Body, renew: Callable[[], None]) -> None:
        self._data, self._renew = data, renew

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._data:
            self._renew()
            yield piece
        self._renew()


def location(host: str, answer: Answer, what: str) -> str:
    """The address that *answer* sends us on to, absolute.

    :raises RegistryError: there is none, or one that is not to be asked.
    """
    try:
        # Header fields come as Latin-1, and servers write UTF-8.
        told = answer.headers["Location"].encode("latin-1").decode()
        url = urljoin(answer.url, told)
        scheme, name = urlsplit(url).scheme, urlsplit(url).hostname
        _ = urlsplit(url).port
    except (KeyError, ValueError):
        scheme, name = "", None
    if scheme not in ("http", "https") or not name:
        raise RegistryError(
            f"{host}: {what}: HTTP {answer.status} without a usable Location", hint="the registry is at fault"
        )
    if scheme == "http" and answer.url.startswith("https:"):
        raise RegistryError(
            f"{host}: {what}: sent on from https to http, which is not followed",
            hint="the registry does not know that it is behind https: see its `host` or `relativeurls`",
        )
    return url


def _bounded(response: requests.Response, most: int) -> Iterator[bytes]:
    while most > 0 and (piece := response.raw.read(min(most, _PIECE), decode_content=False)):
        most -= len(piece)
        yield piece


def _without_body(response: requests.Response) -> Answer:
    return Answer(url=response.url, status=response.status_code, headers=response.headers, body=b"")
