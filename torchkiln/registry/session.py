"""Repository's host → Registry: requests to it, as who we are, tried again while that may help."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from urllib.parse import urljoin, urlsplit

import requests
from urllib3.exceptions import HTTPError

from torchkiln.errors import RegistryError
from torchkiln.model.digest import Digest
from torchkiln.registry.answer import Answer
from torchkiln.registry.credentials import Login
from torchkiln.registry.exchange import Exchange, Session, location
from torchkiln.registry.reference import api_host, is_local
from torchkiln.registry.request import HttpRequest
from torchkiln.registry.tokens import Authority
from torchkiln.util.http.failures import certificate_fault, reason_of
from torchkiln.util.http.retry import AGAIN, ATTEMPTS, GivenUp, Transient, retry, retry_after
from torchkiln.util.http.session import DIRECT, Network

_AT_FIRST = 3  # attempts to reach it at all: most likely the name is wrong
_RENEWALS = 3  # of a token for one request: of several threads' requests, the last may find it spent again
_ALL = 256 << 20  # bytes of all documents that one registry sends us
READS = 40.0  # seconds of attempts and pauses after which a document is not tried again
_WRITES = 300.0  # the same of the rest


class Stopped(Exception):
    """The work was called off."""


class Refused(Transient):
    """A 401 for what cannot be sent twice just so. Nothing of it was taken; the next try has a new token."""

    at_once = True


class Registry:
    """One registry, asked by any number of threads.

    :param plain_http: no TLS; without it, hosts of this machine alone are asked so.
    :param sleep: a test has its own.
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
        self._http = Session(network, local=is_local(host))
        self._exchange = Exchange(self._http, host)
        self._taken = 0  # bytes of documents
        self._authority = Authority(host, login, self._fetch, secure=secure)

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def stop(self) -> None:
        """Call the work off: who sends or waits in another thread gets `Stopped`, at once."""
        self._stopped.set()
        self._http.opened.shut_down()

    def rest(self, seconds: float) -> None:
        """Sleep before another attempt.

        :raises Stopped: meanwhile.
        """
        self._check()
        self._sleep(seconds)
        self._check()

    def check(self) -> None:
        """Ask whether it is a registry, and what it wants to know of us, before the work begins.

        :raises RegistryError: it is none, or cannot be reached.
        """
        what = "the registry"
        request = HttpRequest(method="GET", url="/v2/", what=what, scopes=None)
        answer = self._again(what, lambda: self.ask(request), READS, _AT_FIRST)
        if answer.status not in (200, 401, 403):
            raise RegistryError(
                f"{self.host}: HTTP {answer.status} for /v2/, so it is no registry",
                hint="look at its name and port",
            )

    def persist(self, request: HttpRequest) -> Answer:
        """`ask`, again and again with growing pauses.

        :raises RegistryError: no lasting answer, or our credentials are refused.
        """
        return self._again(request.what, lambda: self.ask(request), READS if request.reads else _WRITES)

    def ask(self, request: HttpRequest) -> Answer:
        """One request. Every answer that trying again cannot change is returned, 404 included.

        :raises Transient: no connection, 5xx, 429 and the like.
        :raises Refused: a 401 where the body cannot be sent twice.
        :raises RegistryError: fresh credentials are refused, or a certificate is not trusted.
        """
        url, scopes = urljoin(self.origin, request.url), request.scopes
        ours = _origin(url) == _origin(self.origin)
        used: str | None = None
        for renewals in range(_RENEWALS + 1):
            before = used
            used = self._authority.header(scopes or ()) if ours and scopes is not None else None
            if renewals and used == before:  # a password: asking again may lock the account
                break
            login = {"Authorization": used} if used else {}
            answer = self._send(replace(request, url=url, headers={**request.headers, **login}))
            if answer.status != 401 or not ours:
                return answer
            if renewals and "insufficient_scope" in answer.headers.get("WWW-Authenticate", ""):
                break
            self._authority.learn(answer, scopes or (), used)
            if scopes is None:
                return answer
            if request.body is not None and not isinstance(request.body, bytes):
                raise Refused("HTTP 401 in the middle of an upload")
        raise self.refused(request.what, answer)

    def refused(self, what: str, answer: Answer) -> RegistryError:
        """The error for an answer that trying again cannot change."""
        if answer.status in (401, 403):
            return self._authority.denied(f"{what} ({self._authority.scrub(answer.told())})")
        hint = {
            404: "look at the repository's name; some registries want it to be made before the first push",
            405: "it takes no pushes: is it a mirror?",
            413: "it, or a proxy before it, takes no blobs of this size",
        }.get(answer.status, "the registry is at fault; try again later, nothing there has changed")
        return RegistryError(f"{self.host}: {what}: {self._authority.scrub(answer.told())}", hint=hint)

    def lost(self, what: str, reason: str, attempts: int = ATTEMPTS) -> RegistryError:
        """The error for a registry that gave no lasting answer."""
        often = f"{attempts} attempts" if attempts > 1 else "and it asks for too long a pause"
        return RegistryError(
            f"{self.host}: {what}: {reason}, {often}",
            hint="check the registry's address, the network and the proxy; run again to continue",
        )

    def location(self, answer: Answer, what: str) -> str:
        """The address that *answer* sends us on to, absolute.

        :raises RegistryError: there is none, or one that is not to be asked.
        """
        return location(self.host, answer, what)

    def demand_digest(self, answer: Answer, digest: Digest, what: str) -> None:
        """Hold what the registry says that it got against *digest*.

        :raises RegistryError: it is another one. Registries may leave it out, and then nothing is wrong.
        """
        told = answer.headers.get("Docker-Content-Digest", digest)
        if told != digest:
            raise RegistryError(
                f"{self.host}: {what}: it says that it has {told[:80]} there, and was given {digest}",
                hint="something between us and the registry changes what goes by",
            )

    def _check(self) -> None:
        if self._stopped.is_set():
            raise Stopped

    def _fetch(
        self, method: str, url: str, *, headers: Mapping[str, str], data: bytes | None = None
    ) -> Answer:
        request = HttpRequest(method=method, url=url, what="a token", headers=headers, body=data)
        return self._again(request.what, lambda: self._send(request), READS)

    def _again(
        self, what: str, step: Callable[[], Answer], patience: float, attempts: int = ATTEMPTS
    ) -> Answer:
        try:
            return retry(step, sleep=self.rest, max_seconds=patience, attempts=attempts)
        except GivenUp as error:
            raise self.lost(what, str(error), error.attempts) from error

    def _send(self, request: HttpRequest) -> Answer:
        what = request.what
        self._check()
        try:
            answer = self._exchange.send(request)
        except ValueError as error:  # requests' own kinds of it too
            self._check()
            raise RegistryError(
                f"{self.host}: {what}: not a valid answer: {type(error).__name__}",
                hint="the registry is at fault",
            ) from error
        except (requests.RequestException, HTTPError, OSError) as error:
            self._check()
            if isinstance(error, requests.exceptions.SSLError):
                raise self._tls(what, error) from error
            raise Transient(reason_of(error)) from error
        self._taken += len(answer.body)
        if self._taken > _ALL:
            raise RegistryError(
                f"{self.host}: {what}: the registry has sent more than {_ALL >> 20} MiB of documents",
                hint="name one image; a repository of this size cannot be listed",
            )
        if answer.status in AGAIN:
            raise Transient(self._authority.scrub(answer.told()), retry_after(answer.headers))
        return answer

    def _tls(self, what: str, error: requests.exceptions.SSLError) -> RegistryError:
        if "WRONG_VERSION_NUMBER" in str(error):
            hint = "if it is a registry without https, and the network is yours: --plain-http"
        else:
            hint = "set SSL_CERT_FILE to the CA bundle of this network"
        return RegistryError(f"{self.host}: {what}: {certificate_fault(error)}", hint=hint)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
