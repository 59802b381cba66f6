"""Transport → Session: requests' own, whose connections another thread can end.

An upload must not outlive a Ctrl-C by the minute that a silent server is given.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass, field
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection

from torchkiln import __version__

POOL = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Transport:
    """How the user's network is to be crossed. `proxy`: beside those in the environment."""

    plain_http: bool = False
    ca_bundle: str | None = None
    client_cert: str | None = None
    proxy: str | None = field(default=None, repr=False)


class Open:
    """The connections that are open, of all threads."""

    def __init__(self) -> None:
        self._all: set[HTTPConnection] = set()
        self._guard = threading.Lock()
        self._ended = False

    def add(self, connection: HTTPConnection) -> None:
        """Note *connection*; one that comes too late is ended at once."""
        with self._guard:
            self._all.add(connection)
            if self._ended:
                _end(connection)

    def remove(self, connection: HTTPConnection) -> None:
        with self._guard:
            self._all.discard(connection)

    def end(self) -> None:
        """End them all where they stand: who sends or waits on one gets an error."""
        with self._guard:
            self._ended = True
            for connection in self._all:
                _end(connection)


def _end(connection: HTTPConnection) -> None:
    """Not `close`, which wakes no thread that waits, nor TLS's own good-bye, which would wait itself."""
    if connection.sock is not None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)


class Adapter(HTTPAdapter):
    """requests' own, with connections that stand in *opened* while they are open."""

    def __init__(self, opened: Open) -> None:
        self._opened = opened
        super().__init__(pool_maxsize=POOL, max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self._watch(self.poolmanager)

    def proxy_manager_for(self, proxy: Any, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **kwargs)
        self._watch(manager)
        return manager

    def _watch(self, manager: PoolManager) -> None:
        opened = self._opened

        class Plain(HTTPConnection):
            def connect(self) -> None:
                super().connect()
                opened.add(self)

            def close(self) -> None:
                opened.remove(self)
                super().close()

        class Secure(Plain, HTTPSConnection):
            """`super()` up there is HTTPS's own, here."""

        class PlainPool(HTTPConnectionPool):
            ConnectionCls = Plain

        class SecurePool(HTTPSConnectionPool):
            ConnectionCls = Secure

        manager.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}


class Session(requests.Session):
    """Proxies as everywhere; no netrc, and no login on to another host: those are `tokens`' affair."""

    def __init__(self, opened: Open, transport: Transport, *, local: bool) -> None:
        super().__init__()
        self.trust_env = not local  # a proxy elsewhere cannot reach this machine
        self.auth = lambda request: request
        self.cert = transport.client_cert
        self.headers = requests.structures.CaseInsensitiveDict(
            {"User-Agent": f"torchkiln/{__version__}", "Accept": "*/*", "Accept-Encoding": "identity"}
        )
        if transport.proxy and not local:
            self.proxies = {"http": transport.proxy, "https": transport.proxy}
        for scheme in ("http://", "https://"):
            self.mount(scheme, Adapter(opened))

    def rebuild_auth(self, prepared_request: Any, response: Any) -> None:
        """After a redirect: the login stays where it was given."""
        stripped = self.should_strip_auth(response.request.url, prepared_request.url)  # type: ignore[no-untyped-call]
        if stripped:
            prepared_request.headers.pop("Authorization", None)
