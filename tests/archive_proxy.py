"""Proxies of the real Debian archive: one with its own CA and a password, one that does not change."""

from __future__ import annotations

import base64
import re
import ssl
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import requests
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from tests.servers.answering import Answer, Answering
from tests.servers.certificate import with_authority
from torchkiln.base.recipe import recipe, values, variables


@dataclass(frozen=True, kw_only=True)
class PrivateArchive:
    """The archive's address with credentials, and its CA; `requested` has the served paths."""

    address: str  # with user and password
    ca: Path
    requested: list[str] = field(default_factory=list)


@retry(retry=retry_if_exception_type(requests.RequestException), stop=stop_after_attempt(6), reraise=True)
def fetched(url: str) -> requests.Response:
    """Get *url* from the archive; repeat the request if the connection fails, so that apt sees no failure."""
    return requests.get(url, timeout=300)


@contextmanager
def private_archive(upstream: str, host: str, login: str, folder: Path) -> Iterator[PrivateArchive]:
    """A context manager: serve *upstream* at `https://login@host:port`."""
    ca, certificate = with_authority(host, folder)
    expected = "Basic " + base64.b64encode(login.encode()).decode()
    requested: list[str] = []

    def answer(path: str, headers: Mapping[str, str]) -> Answer:
        if headers.get("Authorization") != expected:
            return 401, {"WWW-Authenticate": 'Basic realm="private"'}, b""
        requested.append(path)
        return forwarded(fetched(upstream + path))

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with Answering(answer, host, context) as server:
        yield PrivateArchive(address=f"https://{login}@{host}:{server.port}", ca=ca, requested=requested)


@contextmanager
def held_archive(os_name: str, environ: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """A context manager: a proxy with the archive of *os_name* as it is at the first request of each file.

    Debian publishes at any time, so two builds from the archive itself may differ.

    :returns: *environ* with the proxy, and with mirrors that apt asks through it.
    """
    names = variables(recipe(os_name))[:2]
    mirrors = dict(zip(names, values(recipe(os_name), environ)[:2], strict=True))
    with_tls = tuple(at.removeprefix("https://") for at in mirrors.values() if at.startswith("https:"))
    held: dict[str, Answer] = {}
    locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def answer(path: str, _: Mapping[str, str]) -> Answer:
        place = path.removeprefix("http://")  # to a proxy, apt sends the whole URL
        with locks[place]:
            if place not in held:
                held[place] = forwarded(fetched(f"http{'s' * place.startswith(with_tls)}://{place}"))
        return held[place]

    with Answering(answer) as server:
        own = {name: re.sub("^https:", "http:", address) for name, address in mirrors.items()}
        yield {**environ, **own, "http_proxy": f"http://127.0.0.1:{server.port}", "no_proxy": ""}


def forwarded(found: requests.Response) -> Answer:
    kept = ("Last-Modified", "Content-Type")
    return found.status_code, {k: found.headers[k] for k in kept if k in found.headers}, found.content
