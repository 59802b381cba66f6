"""Sends requests to a registry, with Docker's login, pip's network settings, and retries."""

from __future__ import annotations

import http.cookiejar
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from urllib.parse import urljoin, urlsplit

import requests
from urllib3.exceptions import HTTPError

from torchkiln import __version__
from torchkiln.errors import RegistryError
from torchkiln.index.settings import index_settings
from torchkiln.model.digest import Digest
from torchkiln.registry.credentials import Login, find_login
from torchkiln.registry.messages import REGISTRY_AT_FAULT, Body, HttpRequest, HttpResponse
from torchkiln.registry.reference import Repository, api_host, is_local
from torchkiln.registry.tokens import Authenticator
from torchkiln.util.http import redirects
from torchkiln.util.http.failures import certificate_fault, reason_of
from torchkiln.util.http.redirects import UnsafeRedirect
from torchkiln.util.http.retry import AGAIN, ATTEMPTS, GivenUp, Transient, retry, retry_after
from torchkiln.util.http.session import DIRECT, LimitedSession, Network

_FIRST_ATTEMPTS = 3  # for the first connection, which most often fails because the host name is wrong
_RENEWALS = 3  # maximum new tokens for one request: a token may expire while other threads send requests
_ALL = 256 << 20  # bytes of all documents from one registry
READS = 40.0  # seconds of attempts and pauses after which a read is not retried
WRITES = 300.0  # the same for a write
_PIECE = 1 << 18  # bytes of a body that are read at once
_CONNECT = 10.0  # seconds
_STALLED = 60.0  # seconds without progress of a blob
SILENCE = 120.0  # seconds without progress of an upload: registries can be slow to send a 201
_DOCUMENT = 20.0  # seconds for a document, from the request to its last byte


class Stopped(Exception):
    """The work was cancelled."""


class TokenExpired(Transient):
    """A 401 for a body that cannot be sent again in the same attempt; the next attempt has a new token."""

    at_once = True


class Registry:
    """The client of one registry; thread-safe.

    :param plain_http: use HTTP without TLS, which otherwise is used only for localhost.
    :param sleep: replaces the pauses between attempts; for tests.
    """

    def __init__(
        self,
        host: str,
        login: Login | None = None,
        network: Network = DIRECT,
        *,
        plain_http: bool = False,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        secure = not (plain_http or is_local(host))
        self.host, self.origin = host, f"{'https' if secure else 'http'}://{api_host(host)}"
        self._stopped = threading.Event()
        self._sleep = sleep or self._stopped.wait
        self._http = RegistrySession(network, local=is_local(host))
        self._received = 0  # bytes of documents
        self._authenticator = Authenticator(host, login, self._fetch, secure=secure)

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def stop(self) -> None:
        """Cancel the work: requests and pauses in other threads raise `Stopped` at once."""
        self._stopped.set()
        self._http.opened.shut_down()

    def sleep(self, seconds: float) -> None:
        """Sleep before another attempt.

        :raises Stopped: the work was cancelled.
        """
        self._check()
        self._sleep(seconds)
        self._check()

    def check(self) -> None:
        """Check that the host is a registry, and learn how to authenticate.

        :raises RegistryError: it is not, or the request failed.
        """
        what = "GET /v2/"
        request = HttpRequest(method="GET", url="/v2/", what=what, scopes=None)
        response = self._retry(what, lambda: self.request_once(request), READS, _FIRST_ATTEMPTS)
        if response.status not in (200, 401, 403):
            raise RegistryError(
                f"{self.host}: not a registry: HTTP {response.status} for /v2/",
                hint="check the host name and port",
            )

    def request(self, request: HttpRequest) -> HttpResponse:
        """`request_once` with retries.

        :raises RegistryError: all attempts failed, or access is denied.
        """
        return self._retry(
            request.what, lambda: self.request_once(request), READS if request.reads else WRITES
        )

    def request_once(self, request: HttpRequest) -> HttpResponse:
        """The response to one request, including errors such as 404.

        :raises Transient: no connection, 5xx, 429: a retry may help.
        :raises TokenExpired: a 401 for a body that cannot be sent again.
        :raises RegistryError: access is denied with new credentials, or a certificate is not trusted.
        """
        url, scopes = urljoin(self.origin, request.url), request.scopes
        ours = _origin(url) == _origin(self.origin)
        used: str | None = None
        for renewals in range(_RENEWALS + 1):
            before = used
            used = self._authenticator.header(scopes or ()) if ours and scopes is not None else None
            if renewals and used == before:  # the password was refused: more attempts may lock the account
                break
            login = {"Authorization": used} if used else {}
            response = self._send(replace(request, url=url, headers={**request.headers, **login}))
            if response.status != 401 or not ours:
                return response
            if renewals and "insufficient_scope" in response.headers.get("WWW-Authenticate", ""):
                break
            self._authenticator.learn(response, scopes or (), used)
            if scopes is None:
                return response
            if request.body is not None and not isinstance(request.body, bytes):
                raise TokenExpired("HTTP 401 during an upload")
        raise self.http_error(request.what, response)

    def http_error(self, what: str, response: HttpResponse) -> RegistryError:
        """The error for a status that a retry does not change."""
        if response.status in (401, 403):
            return self._authenticator.denied(f"{what} ({self._authenticator.redact(response.error_text())})")
        hint = {
            404: "check the repository's name; some registries require that you create it before a push",
            405: "the registry does not accept pushes: it may be a mirror",
            413: "the registry, or a proxy in front of it, does not accept blobs of this size",
        }.get(response.status, "the registry is at fault; try again later")
        return RegistryError(
            f"{self.host}: {what}: {self._authenticator.redact(response.error_text())}", hint=hint
        )

    def unavailable(self, what: str, error: GivenUp) -> RegistryError:
        """The error after the last attempt."""
        count = f"{error.attempts} attempt{'s' * (error.attempts > 1)}"
        if error.error.wait and error.attempts == 1:
            count += "; its Retry-After is too long"
        return RegistryError(
            f"{self.host}: {what}: {error} ({count})",
            hint="check the network, the proxy settings and the registry, then run the command again; "
            "a push skips blobs that the registry already has",
        )

    def location(self, response: HttpResponse, what: str) -> str:
        """The absolute URL in the Location header of *response*.

        :raises RegistryError: it is missing or unsafe.
        """
        try:
            # http.client decodes headers as Latin-1, and servers write UTF-8.
            url = urljoin(response.url, response.headers["Location"].encode("latin-1").decode())
        except (KeyError, ValueError):
            raise RegistryError(
                f"{self.host}: {what}: HTTP {response.status} without a valid Location",
                hint=REGISTRY_AT_FAULT,
            ) from None
        if why := redirects.unsafe(url, response.url):
            raise unsafe_redirect(self.host, what, why)
        return url

    def check_digest(self, response: HttpResponse, digest: Digest, what: str) -> None:
        """If the registry reports a digest in *response*, compare it with *digest*.

        :raises RegistryError: they differ.
        """
        found = response.headers.get("Docker-Content-Digest", digest)
        if found != digest:
            raise RegistryError(
                f"{self.host}: {what}: checksum mismatch: the registry received {found[:80]}, not {digest}",
                hint="a proxy in front of the registry may change the data",
            )

    def _check(self) -> None:
        if self._stopped.is_set():
            raise Stopped

    def _fetch(self, request: HttpRequest) -> HttpResponse:
        return self._retry(request.what, lambda: self._send(request), READS)

    def _retry(
        self, what: str, step: Callable[[], HttpResponse], patience: float, attempts: int = ATTEMPTS
    ) -> HttpResponse:
        try:
            return retry(step, sleep=self.sleep, max_seconds=patience, attempts=attempts)
        except GivenUp as error:
            raise self.unavailable(what, error) from error

    def _send(self, request: HttpRequest) -> HttpResponse:
        what = request.what
        self._check()
        try:
            response = self._exchange(request)
        except ValueError as error:  # some exceptions of the library requests are ValueErrors
            self._check()
            raise RegistryError(
                f"{self.host}: {what}: invalid response: {type(error).__name__}", hint=REGISTRY_AT_FAULT
            ) from error
        except (requests.RequestException, HTTPError, OSError) as error:
            self._check()
            if isinstance(error, requests.exceptions.SSLError):
                raise self._tls(what, error) from error
            raise Transient(reason_of(error)) from error
        self._received += len(response.body)
        if self._received > _ALL:
            raise RegistryError(
                f"{self.host}: {what}: the registry has sent more than {_ALL >> 20} MiB of documents",
                hint="name one image: a repository of this size cannot be listed",
            )
        if response.status in AGAIN:
            raise Transient(self._authenticator.redact(response.error_text()), retry_after(response.headers))
        return response

    def _exchange(self, request: HttpRequest) -> HttpResponse:
        """The response; redirects of a GET or HEAD are followed.

        A document that exceeds its limit is an error; the body of an error is truncated.

        :raises RegistryError: an unsafe redirect; a document that is too long or compressed.
        :raises OSError, HTTPError, RequestException, ValueError: errors of requests and urllib3.
        """
        seconds, body = _STALLED if request.reads else SILENCE, request.body
        if quick := request.reads and (request.quick or not request.into):
            seconds = _DOCUMENT
        try:
            with (
                self._http.deadlines.limit(seconds, renewed=not quick) as moved,
                self._http.request(
                    request.method,
                    request.url,
                    headers=dict(request.headers),
                    data=Body(body.size, partial(_reported, body.pieces, moved))
                    if isinstance(body, Body)
                    else body,
                    timeout=(_CONNECT, 2 * seconds),  # the limit above is reached first
                    stream=True,
                    allow_redirects=request.reads,
                ) as response,
            ):
                return self._answer(request, response, moved)
        except requests.TooManyRedirects as error:
            raise RegistryError(
                f"{self.host}: {request.what}: redirect loop: more than {redirects.MAX_REDIRECTS} redirects",
                hint=REGISTRY_AT_FAULT,
            ) from error
        except UnsafeRedirect as error:
            raise unsafe_redirect(self.host, request.what, str(error)) from error

    def _answer(
        self, request: HttpRequest, response: requests.Response, moved: Callable[[int], None]
    ) -> HttpResponse:
        limit, what = request.limit, request.what
        if request.into and response.status_code in (200, 206):
            # Not `raw.stream`, which does not limit the length of a chunk's size line.
            pieces = partial(iter, partial(response.raw.read, _PIECE, decode_content=False), b"")
            request.into(response.status_code, _reported(pieces, moved))
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

    def _invalid(self, what: str, why: str) -> RegistryError:
        return RegistryError(f"{self.host}: {what}: the response is {why}", hint=REGISTRY_AT_FAULT)

    def _tls(self, what: str, error: requests.exceptions.SSLError) -> RegistryError:
        if "WRONG_VERSION_NUMBER" in str(error):
            hint = "if the registry does not use https, and you trust the network: --plain-http"
        else:
            hint = "set SSL_CERT_FILE to the CA bundle of this network"
        return RegistryError(f"{self.host}: {what}: {certificate_fault(error)}", hint=hint)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


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


def unsafe_redirect(host: str, what: str, why: str) -> RegistryError:
    """The error for a redirect that is not followed."""
    return RegistryError(
        f"{host}: {what}: unsafe redirect: {why}",
        hint="the registry is at fault; if it is behind a proxy with https, set `host` or `relativeurls` "
        "in its configuration",
    )


def _reported(pieces: Callable[[], Iterator[bytes]], moved: Callable[[int], None]) -> Iterator[bytes]:
    """*pieces* of a body; *moved* gets the size of each before the next."""
    for piece in pieces():
        yield piece
        moved(len(piece))


def _bounded(response: requests.Response, most: int) -> Iterator[bytes]:
    while most > 0 and (piece := response.raw.read(min(most, _PIECE), decode_content=False)):
        most -= len(piece)
        yield piece


def open_registry(
    repository: Repository, environ: Mapping[str, str], *, plain_http: bool = False
) -> Registry:
    """Open the registry, with Docker's login, and the network settings of *environ* and pip's configuration.

    :raises ConfigError: a setting is invalid.
    """
    network = Network()
    if not plain_http and not is_local(repository.host):
        settings = index_settings(environ)
        network = Network(
            ca_bundle=settings.ca_bundle, client_cert=settings.client_cert, proxy=settings.proxy
        )
    return Registry(repository.host, find_login(repository, environ), network, plain_http=plain_http)
