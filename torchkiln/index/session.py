"""IndexSettings → one HTTP session, and requests that are tried again while that may help."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import requests
from requests.auth import AuthBase, HTTPBasicAuth
from requests.utils import get_netrc_auth
from urllib3.exceptions import HTTPError

from torchkiln.errors import BuildFailed
from torchkiln.index.folder import Folder
from torchkiln.index.settings import IndexSettings, redact
from torchkiln.util.http import session as http_session
from torchkiln.util.http.deadlines import Overdue
from torchkiln.util.http.failures import certificate_fault, reason_of, status_text
from torchkiln.util.http.redirects import UnsafeRedirect
from torchkiln.util.http.retry import AGAIN, ATTEMPTS, GivenUp, Transient, retry, retry_after
from torchkiln.util.http.session import Network

TIMEOUT = (15.0, 60.0)  # seconds: to connect, and between two bytes
WORKERS = 16
LARGE = 2 << 20  # bytes of a page, from which on few are read at a time
PATIENCE = 45.0  # seconds for a page, all attempts and their pauses together
HEADERS = 40.0  # seconds for all headers of an answer, redirects included
_BROKEN = (requests.RequestException, HTTPError, http.client.HTTPException, OSError)
T = TypeVar("T")
_PIECE = 1 << 14  # bytes of a body as it comes; unpacked it may be a thousand times as long


class Session(http_session.LimitedSession):
    """The session of our settings; the credentials of an address go to its own host only."""

    def __init__(self, settings: IndexSettings) -> None:
        super().__init__(
            Network(ca_bundle=settings.ca_bundle, client_cert=settings.client_cert, proxy=settings.proxy)
        )
        self.auth = _Logins(settings.logins)
        self.mount("file://", Folder())

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        """As in requests; our time limits where the caller gives none."""
        kwargs.setdefault("timeout", TIMEOUT)
        with self.deadlines.limit(HEADERS):
            return super().request(*args, **kwargs)


class _Logins(AuthBase):
    """The credentials of an address go to its own host only; elsewhere netrc is asked."""

    def __init__(self, logins: tuple[tuple[str, str, str], ...]) -> None:
        self._logins = {host: (user, password) for host, user, password in logins}

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        host = (request.url or "").split("//", 1)[-1].split("/", 1)[0].rpartition("@")[2]
        login = self._logins.get(host) or get_netrc_auth(request.url or "")
        if login:
            HTTPBasicAuth(*login)(request)
        return request


def ask(session: Session, method: str, url: str, **kwargs: Any) -> requests.Response:
    """One request. Every answer that trying again cannot change is returned, 404 included.

    :raises Transient: no connection, 5xx, 429 and the like.
    :raises BuildFailed: redirects that do not end, a certificate that is not trusted.
    """
    try:
        response = session.request(method, url, **kwargs)
    except requests.exceptions.SSLError as error:
        raise BuildFailed(
            f"{redact(url)}: {certificate_fault(error)}",
            hint="set SSL_CERT_FILE, or pip's `cert`, to the CA bundle of this network",
        ) from error
    except UnsafeRedirect as error:
        raise BuildFailed(
            f"{redact(error.url)}: redirected to an address that is not followed: {error}",
            hint="the index, or somebody between, is at fault; try another one",
        ) from error
    except requests.TooManyRedirects as error:
        raise BuildFailed(
            f"{redact(url)}: redirect loop: more than {session.max_redirects} redirects",
            hint="the index is at fault; try another one",
        ) from error
    except (requests.RequestException, TimeoutError) as error:
        raise Transient(reason_of(error)) from error
    except (ValueError, LookupError) as error:  # an address or a header that the library cannot even read
        raise BuildFailed(
            f"{redact(url)}: not a valid answer: {type(error).__name__}",
            hint="the index is at fault; try another one",
        ) from error
    if response.status_code in AGAIN:
        response.close()
        raise Transient(status_text(response.status_code), retry_after(response.headers))
    return response


def get(
    session: Session,
    url: str,
    most: int,
    *,
    sleep: Callable[[float], None] = time.sleep,
    on_large: Callable[[], None] = lambda: None,
    **kwargs: Any,
) -> tuple[requests.Response, bytes]:
    """`persist` for a GET whose body, at *most* so many bytes unpacked, comes with the answer.

    All of it, attempts and pauses included, is over after `PATIENCE`.

    :param on_large: called once, when the body turns out to be a large one.
    :raises BuildFailed: the server gave no lasting answer, or one that is too long or takes too long.
    """

    def attempt() -> tuple[requests.Response, bytes]:
        with ask(session, "GET", url, stream=True, **kwargs) as response:
            try:
                return response, _body(response, url, most, on_large)
            except _BROKEN as error:
                raise Transient(reason_of(error)) from error

    return _persist(session, url, attempt, sleep)


def _body(response: requests.Response, url: str, most: int, on_large: Callable[[], None]) -> bytes:
    body, large = bytearray(), False
    for piece in _pieces(response):
        body += piece
        if len(body) > most:
            raise BuildFailed(
                f"{redact(url)}: longer than {_size(most)}",
                hint="the index is at fault; check the index address, or try another one",
            )
        if len(body) > LARGE and not large:
            on_large()
            large = True
    return bytes(body)


def _pieces(response: requests.Response) -> Iterator[bytes]:
    """The body, unpacked. Not by `iter_content`: that reads the line before a chunk whole, however long."""
    while piece := response.raw.read(_PIECE, decode_content=True):
        yield piece


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def persist(
    session: Session,
    method: str,
    url: str,
    *,
    sleep: Callable[[float], None] = time.sleep,
    **kwargs: Any,
) -> requests.Response:
    """`ask`, again and again with growing pauses.

    :raises BuildFailed: the server gave no lasting answer.
    """
    return _persist(session, url, lambda: ask(session, method, url, **kwargs), sleep)


def _persist(session: Session, url: str, step: Callable[[], T], sleep: Callable[[float], None]) -> T:
    patience = session.deadlines.left(PATIENCE)
    end = time.monotonic() + patience

    def limited() -> T:
        try:
            with session.deadlines.limit(end - time.monotonic()):
                return step()
        except Overdue as error:
            raise Transient("timed out") from error

    try:
        return retry(limited, sleep=sleep, max_seconds=patience)
    except GivenUp as error:
        if error.attempts < ATTEMPTS:
            raise _late(url, str(error)) from error
        raise lost(url, str(error)) from error


def _late(url: str, reason: str) -> BuildFailed:
    return BuildFailed(
        f"{redact(url)}: {reason}; no complete answer within {PATIENCE:.0f} seconds",
        hint="check the network, the proxy (HTTPS_PROXY, pip's `proxy`) and the index",
    )


def lost(url: str, reason: str) -> BuildFailed:
    """The error for a server that gave no lasting answer."""
    return BuildFailed(
        f"{redact(url)}: {reason} ({ATTEMPTS} attempts)",
        hint="check the network, the proxy (HTTPS_PROXY, pip's `proxy`) and the index; "
        "what was fetched is kept, and the next run resumes there",
    )


def refused(url: str, status: int) -> BuildFailed:
    """The error for an answer that trying again cannot change."""
    hint = {
        401: "the index wants credentials: put them into netrc or into the index address",
        403: "the index denies access to this file; check your credentials and its rules",
        404: "the index does not have this file; check the index address, or use an index that has it",
        407: "the proxy wants credentials: see pip's `proxy` setting",
    }.get(status, "the index is at fault; try again later or use another one")
    return BuildFailed(f"{redact(url)}: {status_text(status)}", hint=hint)
