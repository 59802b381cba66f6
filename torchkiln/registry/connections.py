"""Transport → Session: requests' own, whose connections another thread can end.

An upload must not outlive a Ctrl-C by the minute that a silent server is given.
"""

from __future__ import annotations

import contextlib
import http.client
import http.cookiejar
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
_HEADERS = 64 << 10  # bytes of an answer's header


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
        self._by_thread: dict[int, HTTPConnection] = {}
        self._guard = threading.Lock()
        self._ended = False

    def add(self, connection: HTTPConnection) -> None:
        """Note *connection*; one that comes too late is ended at once."""
        with self._guard:
            self._all.add(connection)
            if self._ended:
                _end(connection)

    def use(self, connection: HTTPConnection) -> None:
        """Note that this thread works with *connection* from now on."""
        with self._guard:
            self._by_thread[threading.get_ident()] = connection

    def end_of(self, thread: int) -> None:
        """End the connection that *thread* works with."""
        with self._guard:
            if (connection := self._by_thread.get(thread)) in self._all and connection is not None:
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


class _Response(http.client.HTTPResponse):
    """The standard library's, which reads a chunk of a negative size to the end of the stream."""

    def _read_next_chunk_size(self) -> int:
        size: int = super()._read_next_chunk_size()  # type: ignore[misc]
        if size < 0:
            self.close()
            raise ValueError("negative chunk size")
        return size


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
            response_class = _Response

            def connect(self) -> None:
                super().connect()
                opened.add(self)

            def putrequest(self, *args: Any, **kwargs: Any) -> None:
                opened.use(self)
                super().putrequest(*args, **kwargs)

            def getresponse(self) -> Any:
                response = super().getresponse()
                if sum(len(name) + len(value) for name, value in response.headers.items()) > _HEADERS:
                    self.close()
                    raise http.client.LineTooLong("header")
                return response

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
        self.cookies.set_policy(http.cookiejar.DefaultCookiePolicy(allowed_domains=[]))
        self.headers = requests.structures.CaseInsensitiveDict(
            {"User-Agent": f"torchkiln/{__version__}", "Accept": "*/*", "Accept-Encoding": "identity"}
        )
        if transport.proxy and not local:
            self.proxies = {"http": transport.proxy, "https": transport.proxy}
        for scheme in ("http://", "https://"):
            self.mount(scheme, Adapter(opened))

    def get_redirect_target(self, resp: Any) -> None:
        """`exchange` follows redirects: requests reads the whole body of each, even where it follows none."""
