"""IndexSettings → one HTTP session, and requests that are tried again while that may help."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase, HTTPBasicAuth
from requests.utils import get_netrc_auth

from torchkiln.errors import BuildFailed
from torchkiln.index.folder import Folder
from torchkiln.index.settings import IndexSettings, redact
from torchkiln.retry import AGAIN, ATTEMPTS, Transient, pause, retry_after

TIMEOUT = (15.0, 60.0)  # seconds: to connect, and between two bytes
WORKERS = 16
_PIECE = 1 << 14  # bytes of a body as it comes; unpacked it may be a thousand times as long


class Session(requests.Session):
    """A session that follows our settings and not REQUESTS_CA_BUNDLE, which requests would put above them."""

    def __init__(self, settings: IndexSettings) -> None:
        super().__init__()
        self.auth = _Logins(settings.logins)
        self.verify = settings.ca_bundle or True
        self.cert = settings.client_cert
        if settings.proxy:
            self.proxies = {"http": settings.proxy, "https": settings.proxy}
        for scheme in ("http://", "https://"):
            self.mount(scheme, HTTPAdapter(pool_maxsize=WORKERS * 2, max_retries=0))
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
            f"{redact(url)}: the certificate is not trusted",
            hint="set SSL_CERT_FILE, or pip's `cert`, to the CA bundle of this network",
        ) from error
    except requests.TooManyRedirects as error:
        raise BuildFailed(
            f"{redact(url)}: redirected in a circle", hint="the index is at fault; try another one"
        ) from error
    except requests.RequestException as error:
        who = "the proxy" if isinstance(error, requests.exceptions.ProxyError) else "the index"
        raise Transient(f"{who} cannot be reached: no connection ({type(error).__name__})") from error
    if response.status_code in AGAIN:
        response.close()
        raise Transient(f"HTTP {response.status_code}", retry_after(response.headers))
    return response


def unsafe(url: str, page: str) -> str:
    """Why *url*, to which *page* leads, is not to be asked; "" when it is."""
    try:
        parts, scheme = urlsplit(url), urlsplit(page).scheme
        host, login = parts.hostname, parts.username or parts.password
    except ValueError:
        return "it is none"
    if parts.scheme not in ("http", "https"):
        return f"{parts.scheme[:20] or 'no scheme'}: is neither http nor https"
    if (scheme, parts.scheme) == ("https", "http"):
        return "it leaves https for http"
    if login:
        return "it holds credentials, which belong into netrc or into the index address"
    if not host or not url.isprintable() or " " in url:
        return "it is none"
    return ""


def get(
    session: requests.Session,
    url: str,
    most: int,
    *,
    sleep: Callable[[float], None] = time.sleep,
    **kwargs: Any,
) -> tuple[requests.Response, bytes]:
    """`persist` for a GET whose body, at *most* so many bytes unpacked, comes with the answer.

    :raises BuildFailed: the server gave no lasting answer, or one that is longer.
    """
    for attempt in range(1, ATTEMPTS + 1):
        wait = 0.0
        try:
            with ask(session, "GET", url, stream=True, **kwargs) as response:
                body = bytearray()
                for piece in response.iter_content(_PIECE):
                    body += piece
                    if len(body) > most:
                        raise BuildFailed(
                            f"{redact(url)}: more than {most >> 20} MiB, which no page has",
                            hint="the index is at fault; look at the index address, or try another one",
                        )
                return response, bytes(body)
        except Transient as error:
            reason, wait = str(error), error.wait
        except requests.RequestException as error:  # while the body came
            reason = f"no connection ({type(error).__name__})"
        if attempt < ATTEMPTS:
            sleep(pause(attempt, wait))
    raise lost(url, reason)


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
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return ask(session, method, url, **kwargs)
        except Transient as error:
            if attempt == ATTEMPTS:
                raise lost(url, str(error)) from error
            sleep(pause(attempt, error.wait))
    raise AssertionError("unreachable")


def lost(url: str, reason: str) -> BuildFailed:
    """The error for a server that gave no lasting answer."""
    return BuildFailed(
        f"{redact(url)}: {reason}, {ATTEMPTS} times in a row",
        hint="look at the network, the proxy (HTTPS_PROXY, pip's `proxy`) or the index; "
        "what was fetched is kept, so the next run goes on from there",
    )


def refused(url: str, status: int) -> BuildFailed:
    """The error for an answer that trying again cannot change."""
    hint = {
        401: "the index wants credentials: put them into netrc or into the index address",
        403: "the index refuses this file to you",
        404: "the file is gone from the index; run: torchkiln lock --upgrade",
        407: "the proxy wants credentials: see pip's `proxy` setting",
    }.get(status, "the index is at fault; try again later or use another one")
    return BuildFailed(f"{redact(url)}: HTTP {status}", hint=hint)
