"""One request → its answer, within limits: redirects, bytes of the body, time."""

from __future__ import annotations

import http.cookiejar
from collections.abc import Callable, Iterator
from dataclasses import replace
from urllib.parse import urljoin

import requests

from torchkiln import __version__
from torchkiln.errors import RegistryError
from torchkiln.registry.answer import Answer
from torchkiln.registry.request import Body, HttpRequest
from torchkiln.util.http import redirects
from torchkiln.util.http import session as http_session
from torchkiln.util.http.redirects import UnsafeRedirect
from torchkiln.util.http.session import Network

_PIECE = 1 << 20  # bytes of a body that is taken at once
_CONNECT = 10.0  # seconds
_SILENCE = 120.0  # seconds for a piece of a blob, and for an answer to one: registries take long before a 201
_DOCUMENT = 20.0  # seconds for a document, from the request to its last byte


class Session(http_session.LimitedSession):
    """Proxies as everywhere; no cookies, no netrc: `tokens` has the logins."""

    def __init__(self, network: Network, *, local: bool) -> None:
        super().__init__(replace(network, proxy=None) if local else network)
        self.trust_env = not local  # a proxy elsewhere cannot reach this machine
        self.auth = lambda request: request
        self.cookies.set_policy(http.cookiejar.DefaultCookiePolicy(allowed_domains=[]))
        self.headers = requests.structures.CaseInsensitiveDict(
            {"User-Agent": f"torchkiln/{__version__}", "Accept": "*/*", "Accept-Encoding": "identity"}
        )

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """As in requests, without netrc."""
        if self.should_strip_auth(response.request.url, prepared_request.url):  # type: ignore[no-untyped-call]
            prepared_request.headers.pop("Authorization", None)


class Exchange:
    """Sends requests by one session; any number of threads."""

    def __init__(self, session: Session, host: str) -> None:
        self._session, self._deadlines, self._host = session, session.deadlines, host

    def send(self, request: HttpRequest) -> Answer:
        """The answer, where the address or a redirect of a GET or HEAD leads.

        More bytes of a document than its limit are an error; of an error's text, no more are read.

        :raises RegistryError: a redirect that is not followed; a document that is longer or compressed.
        :raises OSError, HTTPError, RequestException, ValueError: as the libraries do.
        """
        body = request.body
        seconds = _DOCUMENT if request.reads and (request.quick or not request.into) else _SILENCE
        try:
            with (
                self._deadlines.limit(seconds),
                self._session.request(
                    request.method,
                    request.url,
                    headers=dict(request.headers),
                    data=body if body is None or isinstance(body, bytes) else self._watched(body),
                    timeout=(_CONNECT, seconds),
                    stream=True,
                    allow_redirects=request.reads,
                ) as response,
            ):
                return self._answer(request, response)
        except requests.TooManyRedirects as error:
            raise RegistryError(
                f"{self._host}: {request.what}: redirect loop: more than {redirects.MAX_REDIRECTS} redirects",
                hint="the registry is at fault",
            ) from error
        except UnsafeRedirect as error:
            raise _not_followed(self._host, request.what, str(error)) from error

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
                self._deadlines.renew(_SILENCE)
            yield piece

    def _watched(self, data: Body) -> _Watched:
        return _Watched(data, lambda: self._deadlines.renew(_SILENCE))

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
    """The address in the Location of *answer*, absolute.

    :raises RegistryError: there is none, or one that is not to be asked.
    """
    try:
        # Header fields come as Latin-1, and servers write UTF-8.
        url = urljoin(answer.url, answer.headers["Location"].encode("latin-1").decode())
    except (KeyError, ValueError):
        raise RegistryError(
            f"{host}: {what}: HTTP {answer.status} without a usable Location", hint="the registry is at fault"
        ) from None
    if why := redirects.unsafe(url, answer.url):
        raise _not_followed(host, what, why)
    return url


def _not_followed(host: str, what: str, why: str) -> RegistryError:
    return RegistryError(
        f"{host}: {what}: redirected to an address that is not followed: {why}",
        hint="the registry is at fault; if it is behind https and does not know it, see its `host` "
        "or `relativeurls`",
    )


def _bounded(response: requests.Response, most: int) -> Iterator[bytes]:
    while most > 0 and (piece := response.raw.read(min(most, _PIECE), decode_content=False)):
        most -= len(piece)
        yield piece


def _without_body(response: requests.Response) -> Answer:
    return Answer(url=response.url, status=response.status_code, headers=response.headers, body=b"")
