"""Transport → Session: requests' own, whose connections another thread can end.

An upload must not outlive a Ctrl-C by the minute that a silent server is given.
"""

from __future__ import annotations

import contextlib
import http.client
import http.cookiejar
import socket
import threading
import weakref
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
    """The sockets that are open, of all threads.

    Sockets, not connections: one whose answer ends with it gives its socket up before the body is read.
    """

    def __init__(self) -> None:
        self._all: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._by_thread: dict[int, weakref.ref[socket.socket]] = {}
        self._guard = threading.Lock()
        self._ended = False

    def use(self, connected: socket.socket) -> None:
        """Note that this thread works with *connected* from now on; one that comes too late is ended."""
        with self._guard:
            self._all.add(connected)
            self._by_thread[threading.get_ident()] = weakref.ref(connected)
            if self._ended:
                _end(connected)

    def end_of(self, thread: int) -> None:
        """End the socket that *thread* works with."""
        with self._guard:
            used = self._by_thread.get(thread)
            if used and (connected := used()):
                _end(connected)

    def end(self) -> None:
        """End them all where they stand: who sends or waits on one gets an error."""
        with self._guard:
            self._ended = True
            for connected in list(self._all):
                _end(connected)


def _end(connected: socket.socket) -> None:
    """Not `close`, which wakes no thread that waits, nor TLS's own good-bye, which would wait itself."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)


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

            def endheaders(self, *args: Any, **kwargs: Any) -> None:
                if self.sock is None:
                    self.connect()
                opened.use(self.sock)
                super().endheaders(*args, **kwargs)

            def getresponse(self) -> Any:
                response = super().getresponse()
                if sum(len(name) + len(value) for name, value in response.headers.items()) > _HEADERS:
                    response.close()
                    self.close()
                    raise http.client.LineTooLong("header")
                return response

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
