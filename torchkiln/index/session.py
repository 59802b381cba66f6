"""The HTTP session for package indexes, and requests with retries."""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import unquote, urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase, HTTPBasicAuth
from requests.utils import get_netrc_auth
from urllib3 import HTTPResponse
from urllib3.exceptions import HTTPError

from torchkiln.errors import BuildFailed
from torchkiln.index.settings import IndexSettings, origin_of, redact
from torchkiln.util.http.failures import certificate_fault, reason_of, status_text
from torchkiln.util.http.redirects import UnsafeRedirect
from torchkiln.util.http.retry import AGAIN, ATTEMPTS, GivenUp, Transient, retry, retry_after
from torchkiln.util.http.session import LimitedSession, Network, Overdue
from torchkiln.util.strict_json import open_plain

TIMEOUT = (15.0, 60.0)  # time limits in seconds: to connect, and between two bytes
WORKERS = 16
LARGE = 2 << 20  # bytes; larger pages are read one at a time
TOTAL = 45.0  # seconds for a page, all attempts and pauses together
HEADERS = 40.0  # seconds for all headers of an answer, redirects included
T = TypeVar("T")
_PIECE = 1 << 14  # bytes of a compressed body; unpacked it may be a thousand times as long


class IndexSession(LimitedSession):
    """The session for the user's settings."""

    def __init__(self, settings: IndexSettings) -> None:
        super().__init__(
            Network(ca_bundle=settings.ca_bundle, client_cert=settings.client_cert, proxy=settings.proxy)
        )
        self.auth = _Logins(settings.logins)
        self.mount("file://", FileAdapter())

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        """As in requests, with time limits unless the caller sets them."""
        kwargs.setdefault("timeout", TIMEOUT)
        with self.deadlines.limit(HEADERS):
            return super().request(*args, **kwargs)


class _Logins(AuthBase):
    """Sends the credentials of a URL to its own scheme, host and port only; else it uses netrc."""

    def __init__(self, logins: tuple[tuple[str, str, str], ...]) -> None:
        self._logins = {origin: (user, password) for origin, user, password in logins}

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        url = request.url or ""
        login = self._logins.get(origin_of(url)) or get_netrc_auth(url)
        return HTTPBasicAuth(*login)(request) if login else request


def send(session: IndexSession, method: str, url: str, **kwargs: Any) -> requests.Response:
    """The response to one request, also if its status is an error such as 404.

    :raises Transient: no connection, or status 5xx or 429; a retry may help.
    :raises BuildFailed: a redirect loop, an untrusted certificate.
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
            f"{redact(error.url)}: unsafe redirect: {error}",
            hint="the index, or a proxy in front of it, is at fault; use another index",
        ) from error
    except requests.TooManyRedirects as error:
        raise BuildFailed(
            f"{redact(url)}: redirect loop: more than {session.max_redirects} redirects",
            hint="the index is at fault; use another one",
        ) from error
    except (requests.RequestException, TimeoutError) as error:
        raise Transient(reason_of(error)) from error
    except (ValueError, LookupError) as error:  # a URL or a header that the library cannot parse
        raise BuildFailed(
            f"{redact(url)}: invalid response: {type(error).__name__}",
            hint="the index is at fault; use another one",
        ) from error
    if response.status_code in AGAIN:
        response.close()
        raise Transient(status_text(response.status_code), retry_after(response.headers))
    return response


def get(
    session: IndexSession,
    url: str,
    most: int,
    *,
    on_large: Callable[[], object] = lambda: None,
    **kwargs: Any,
) -> tuple[requests.Response, bytes]:
    """The response to a GET with retries, and its unpacked body of at most *most* bytes.

    Attempts and pauses together take at most `TOTAL` seconds.

    :param on_large: called once, when the body exceeds `LARGE` bytes.
    :raises BuildFailed: all attempts failed, or the body is too long or takes too long.
    """

    def attempt() -> tuple[requests.Response, bytes]:
        with send(session, "GET", url, stream=True, **kwargs) as response:
            try:
                return response, _body(response, url, most, on_large)
            except (HTTPError, http.client.HTTPException, OSError) as error:
                raise Transient(reason_of(error)) from error

    return _retry(session, url, attempt)


def _body(response: requests.Response, url: str, most: int, on_large: Callable[[], object]) -> bytes:
    body, large = bytearray(), False
    limit = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most >> 10} KiB"
    # Not `iter_content`, which does not limit the length of a chunk's size line.
    for piece in iter(lambda: response.raw.read(_PIECE, decode_content=True), b""):
        body += piece
        if len(body) > most:
            raise BuildFailed(
                f"{redact(url)}: the response is longer than {limit}",
                hint="the index is at fault; check the index URL, or use another one",
            )
        if len(body) > LARGE and not large:
            on_large()
            large = True
    return bytes(body)


def request(session: IndexSession, method: str, url: str, **kwargs: Any) -> requests.Response:
    """`send` with retries.

    :raises BuildFailed: all attempts failed.
    """
    return _retry(session, url, lambda: send(session, method, url, **kwargs))


def byte_count(text: str) -> int | None:
    """The number in a Content-Length or in the total of a Content-Range; None if it is not one."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def _retry(session: IndexSession, url: str, step: Callable[[], T]) -> T:
    seconds = session.deadlines.left(TOTAL)
    end = time.monotonic() + seconds

    def limited() -> T:
        try:
            with session.deadlines.limit(end - time.monotonic()):
                return step()
        except Overdue as error:
            raise Transient(reason_of(error)) from error

    try:
        return retry(limited, sleep=time.sleep, max_seconds=seconds)
    except GivenUp as error:
        if error.attempts == ATTEMPTS:
            raise unavailable(url, error) from error
        raise BuildFailed(
            f"{redact(url)}: {error}; no complete response within {TOTAL:.0f} seconds",
            hint="check the network, the proxy (HTTPS_PROXY, pip's `proxy`) and the index",
        ) from error


def unavailable(url: str, error: GivenUp) -> BuildFailed:
    """The error after the last attempt."""
    return BuildFailed(
        f"{redact(url)}: {error} ({error.attempts} attempt{'s' * (error.attempts > 1)})",
        hint="check the network, the proxy (HTTPS_PROXY, pip's `proxy`) and the index, or use another one; "
        "then run the command again; downloads resume",
    )


def http_error(url: str, status: int) -> BuildFailed:
    """The error for an HTTP status that a retry does not change."""
    hint = {
        401: "the index requires credentials: put them into netrc or into the index URL",
        403: "the index denies access to this file: check your credentials and permissions",
        404: "the index does not have this file: check the index URL, or use an index that has it",
        407: "the proxy requires credentials: see pip's `proxy` setting",
    }.get(status, "the index is at fault; try again later or use another one")
    return BuildFailed(f"{redact(url)}: {status_text(status)}", hint=hint)


class FileAdapter(HTTPAdapter):
    """Serves local files. `redirects.unsafe` refuses file: links on pages and in redirects."""

    def send(self, request: requests.PreparedRequest, *_args: Any, **_kwargs: Any) -> requests.Response:
        """The file, or the requested range of it; 404 if it cannot be read."""
        path = Path(unquote(urlsplit(request.url or "").path))
        try:
            body: BinaryIO = open_plain(path)
            size = os.fstat(body.fileno()).st_size
        except OSError:
            return self.build_response(
                request, HTTPResponse(body=BytesIO(), status=404, preload_content=False)
            )
        requested = request.headers.get("Range", "").removeprefix("bytes=")
        start, _, end = requested.partition("-")
        first, last = int(start or 0), min(int(end or size - 1), size - 1)
        headers = {"Content-Length": str(last + 1 - first)}
        if requested:
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        body.seek(first)
        if request.method == "HEAD":
            body.close()
            body = BytesIO()
        raw = HTTPResponse(
            body=body,
            headers=headers,
            status=206 if requested else 200,
            preload_content=False,
            request_method=request.method,
        )
        return self.build_response(request, raw)
