"""IndexSettings → one HTTP session, and requests that are tried again while that may help."""

from __future__ import annotations

import contextlib
import http.client
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import requests
from requests.auth import AuthBase, HTTPBasicAuth
from requests.utils import get_netrc_auth
from urllib3.exceptions import HTTPError

from torchkiln.errors import BuildFailed
from torchkiln.index.folder import Folder
from torchkiln.index.patience import PatientAdapter, limit, until
from torchkiln.index.reasons import certificate_fault, reason_of, status_text
from torchkiln.index.settings import IndexSettings, redact
from torchkiln.util.retry import AGAIN, ATTEMPTS, Transient, pause, retry_after

TIMEOUT = (15.0, 60.0)  # seconds: to connect, and between two bytes
WORKERS = 16
LARGE = 2 << 20  # bytes of a page, from which on few are read at a time
PATIENCE = 45.0  # seconds for a page, all attempts and their pauses together
_BROKEN = (requests.RequestException, HTTPError, http.client.HTTPException, OSError)
_PIECE = 1 << 14  # bytes of a body as it comes; unpacked it may be a thousand times as long


class Session(requests.Session):
    """A session that follows our settings and not REQUESTS_CA_BUNDLE, which requests would put above them."""

    def __init__(self, settings: IndexSettings) -> None:
        super().__init__()
        self.auth = _Logins(settings.logins)
        self.verify = settings.ca_bundle or True
        self.cert = settings.client_cert
        self.max_redirects = 10
        if settings.proxy:
            self.proxies = {"http": settings.proxy, "https": settings.proxy}
        for scheme in ("http://", "https://"):
            self.mount(scheme, PatientAdapter(pool_maxsize=WORKERS * 2, max_retries=0))
        self.mount("file://", Folder())

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        """As in requests; our certificates and time limits where the caller gives none."""
        if self.verify is not True:
            kwargs.setdefault("verify", self.verify)
        kwargs.setdefault("timeout", TIMEOUT)
        return super().request(*args, **kwargs)

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Where an answer sends us on to.

        :raises BuildFailed: out of http and https, or from https to http.
        """
        target = super().get_redirect_target(resp)
        if target and (why := unsafe(urljoin(resp.url, target), resp.url)):
            raise BuildFailed(
                f"{redact(resp.url)}: redirected to an address that is not followed: {why}",
                hint="the index, or somebody between, is at fault; try another one",
            )
        if target and resp.raw is not None:  # requests would read its body to the end, if it has one
            resp.close()
            resp._content = b""
            resp._content_consumed = True  # type: ignore[attr-defined]
        return target


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


def ask(session: requests.Session, method: str, url: str, **kwargs: Any) -> requests.Response:
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
    except requests.TooManyRedirects as error:
        raise BuildFailed(
            f"{redact(url)}: redirect loop: more than {session.max_redirects} redirects",
            hint="the index is at fault; try another one",
        ) from error
    except requests.RequestException as error:
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


def unsafe(url: str, page: str) -> str:
    """Why *url*, to which *page* leads, is not to be asked; "" when it is."""
    try:
        parts, scheme = urlsplit(url), urlsplit(page).scheme
        host, login, _ = parts.hostname, parts.username or parts.password, parts.port
    except ValueError:
        return "not a valid address"
    if parts.scheme not in ("http", "https"):
        return f"{parts.scheme[:20] or 'no scheme'}: is neither http nor https"
    if (scheme, parts.scheme) == ("https", "http"):
        return "it leaves https for http"
    if login:
        return "it holds credentials, which belong into netrc or into the index address"
    if not host or not url.isprintable() or re.search(r"[\s\\\"<>^`{|}]", url):
        return "not a valid address"
    if not unquote(parts.path, errors="replace").isprintable():
        return "it holds control characters"
    return ""


def get(
    session: requests.Session,
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
    end = min(time.monotonic() + PATIENCE, limit())
    for attempt in range(1, ATTEMPTS + 1):
        wait = 0.0
        try:
            with until(end):
                answer = ask(session, "GET", url, stream=True, **kwargs)
            with answer as response, _cut_at(end, response) as over:
                body, large = bytearray(), False
                for piece in _pieces(response):
                    body += piece
                    if len(body) > most:
                        raise BuildFailed(
                            f"{redact(url)}: longer than {_told(most)}",
                            hint="the index is at fault; check the index address, or try another one",
                        )
                    if len(body) > LARGE and not large:
                        on_large()
                        large = True
                    if over.is_set():
                        break
                if not over.is_set():
                    return response, bytes(body)
            reason = "timed out"
        except Transient as error:
            reason, wait = str(error), error.wait
        except _BROKEN as error:  # while the body came
            reason = reason_of(error)
        rest = pause(attempt, wait)
        if time.monotonic() + rest >= end:
            raise _late(url, reason)
        if attempt < ATTEMPTS:
            sleep(rest)
    raise lost(url, reason)


def _pieces(response: requests.Response) -> Iterator[bytes]:
    """The body, unpacked. Not by `iter_content`: that reads the line before a chunk whole, however long."""
    while piece := response.raw.read(_PIECE, decode_content=True):
        yield piece


@contextlib.contextmanager
def _cut_at(end: float, response: requests.Response) -> Iterator[threading.Event]:
    """Inside, *response* is cut off at the moment *end*, however it trickles; then the event is set."""
    over = threading.Event()

    def cut() -> None:
        over.set()
        with contextlib.suppress(ValueError, OSError, RuntimeError, AttributeError):  # it has ended by itself
            response.raw.shutdown()

    timer = threading.Timer(max(end - time.monotonic(), 0.0), cut)
    timer.daemon = True
    timer.start()
    try:
        yield over
    finally:
        timer.cancel()


def _told(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def persist(
    session: requests.Session,
    method: str,
    url: str,
    *,
    sleep: Callable[[float], None] = time.sleep,
    **kwargs: Any,
) -> requests.Response:
    """`ask`, again and again with growing pauses.

    :raises BuildFailed: the server gave no lasting answer.
    """
    end = min(time.monotonic() + PATIENCE, limit())
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with until(end):
                return ask(session, method, url, **kwargs)
        except Transient as error:
            rest = pause(attempt, error.wait)
            if time.monotonic() + rest >= end:
                raise _late(url, str(error)) from error
            if attempt == ATTEMPTS:
                raise lost(url, str(error)) from error
            sleep(rest)
    raise AssertionError("unreachable")


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
