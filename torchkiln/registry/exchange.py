"""Sends one request with limits on redirects, bytes of the body and time."""

from __future__ import annotations

import http.cookiejar
from collections.abc import Callable, Iterator
from dataclasses import replace

import requests

from torchkiln import __version__
from torchkiln.errors import RegistryError
from torchkiln.registry.messages import REGISTRY_AT_FAULT, Body, HttpRequest, HttpResponse
from torchkiln.util.http import redirects
from torchkiln.util.http.redirects import UnsafeRedirect
from torchkiln.util.http.session import LimitedSession, Network

_PIECE = 1 << 20  # bytes of a body that are read at once
_CONNECT = 10.0  # seconds
_SILENCE = 120.0  # seconds for a piece of a blob, and for a response: registries can be slow to send a 201
_DOCUMENT = 20.0  # seconds for a document, from the request to its last byte


class RegistrySession(LimitedSession):
    """A session without cookies and netrc; `tokens` makes the Authorization headers."""

    def __init__(self, network: Network, *, local: bool) -> None:
        super().__init__(replace(network, proxy=None) if local else network)
        self.trust_env = not local  # a proxy on another machine cannot reach localhost
        self.auth = lambda request: request
        self.cookies.set_policy(http.cookiejar.DefaultCookiePolicy(allowed_domains=[]))
        self.headers = requests.structures.CaseInsensitiveDict(
            {"User-Agent": f"torchkiln/{__version__}", "Accept": "*/*", "Accept-Encoding": "identity"}
        )

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """For a redirect, remove the Authorization header as requests does; do not read netrc."""
        if self.should_strip_auth(response.request.url, prepared_request.url):  # type: ignore[no-untyped-call]
            prepared_request.headers.pop("Authorization", None)


class Exchange:
    """Sends requests; thread-safe."""

    def __init__(self, session: RegistrySession, host: str) -> None:
        self._session, self._deadlines, self._host = session, session.deadlines, host

    def send(self, request: HttpRequest) -> HttpResponse:
        """The response; redirects of a GET or HEAD are followed.

        A document that exceeds its limit is an error; the body of an error is truncated.

        :raises RegistryError: an unsafe redirect; a document that is too long or compressed.
        :raises OSError, HTTPError, RequestException, ValueError: errors of requests and urllib3.
        """
        body = request.body
        if body is not None and not isinstance(body, bytes):
            body = _Watched(body, lambda: self._deadlines.renew(_SILENCE))
        seconds = _DOCUMENT if request.reads and (request.quick or not request.into) else _SILENCE
        try:
            with (
                self._deadlines.limit(seconds),
                self._session.request(
                    request.method,
                    request.url,
                    headers=dict(request.headers),
                    data=body,
                    timeout=(_CONNECT, seconds),
                    stream=True,
                    allow_redirects=request.reads,
                ) as response,
            ):
                return self._answer(request, response)
        except requests.TooManyRedirects as error:
            raise RegistryError(
                f"{self._host}: {request.what}: redirect loop: more than {redirects.MAX_REDIRECTS} redirects",
                hint=REGISTRY_AT_FAULT,
            ) from error
        except UnsafeRedirect as error:
            raise unsafe_redirect(self._host, request.what, str(error)) from error

    def _answer(self, request: HttpRequest, response: requests.Response) -> HttpResponse:
        limit, what = request.limit, request.what
        if request.into and response.status_code in (200, 206):
            request.into(response.status_code, self._pieces(response, renewed=not request.quick))
            return HttpResponse(
                url=response.url, status=response.status_code, headers=response.headers, body=b""
            )
        good, body = response.status_code == 200, b""
        if response.headers.get("Content-Encoding", "").strip().lower() in ("", "identity"):
            body = b"".join(_bounded(response, limit + 1))
        elif good and request.method != "HEAD":
            raise self._invalid(what, "compressed, although the request forbids it")
        if len(body) > limit and good:
            raise self._invalid(what, f"longer than {limit} bytes")
        return HttpResponse(
            url=response.url, status=response.status_code, headers=response.headers, body=body[:limit]
        )

    def _pieces(self, response: requests.Response, *, renewed: bool) -> Iterator[bytes]:
        """The pieces of a body; if *renewed*, the time limit starts again with each piece."""
        # Not `raw.stream`, which does not limit the length of a chunk's size line.
        while piece := response.raw.read(_PIECE, decode_content=False):
            if renewed:
                self._deadlines.renew(_SILENCE)
            yield piece

    def _invalid(self, what: str, why: str) -> RegistryError:
        return RegistryError(
            f"{self._host}: {what}: the response is {why}",
            hint=REGISTRY_AT_FAULT,
        )


class _Watched:
    """A body to send; the time limit starts again with each piece."""

    def __init__(self, data: Body, renew: Callable[[], None]) -> None:
        self._data, self._renew = data, renew

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._data:
            self._renew()
            yield piece
        self._renew()


def unsafe_redirect(host: str, what: str, why: str) -> RegistryError:
    """The error for a redirect that is not followed."""
    return RegistryError(
        f"{host}: {what}: unsafe redirect: {why}",
        hint="the registry is at fault; if it is behind a proxy with https, set `host` or `relativeurls` "
        "in its configuration",
    )


def _bounded(response: requests.Response, most: int) -> Iterator[bytes]:
    while most > 0 and (piece := response.raw.read(min(most, _PIECE), decode_content=False)):
        most -= len(piece)
        yield piece
