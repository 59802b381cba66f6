"""An adapter of requests whose sockets another thread can shut down, and whose headers have a limit.

A download or an upload must not outlive a Ctrl-C by the minute that a silent server is given.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import weakref
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection

POOL = 32  # connections to one host
_HEADERS = 64 << 10  # bytes of an answer's header


class OpenSockets:
    """The sockets that are open, of all threads.

    Sockets, not connections: some connections give up their socket before the body is read.
    """

    def __init__(self) -> None:
        self._all: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._by_thread: dict[int, weakref.ref[socket.socket]] = {}
        self._guard = threading.Lock()
        self._ended = False

    def use(self, connected: socket.socket) -> None:
        """Note that this thread works with *connected* from now on; after `shut_down`, end it."""
        with self._guard:
            self._all.add(connected)
            self._by_thread[threading.get_ident()] = weakref.ref(connected)
            if self._ended:
                _shut_down(connected)

    def shut_down_of(self, thread: int) -> None:
        """Shut down the socket that *thread* works with."""
        with self._guard:
            used = self._by_thread.get(thread)
            if used and (connected := used()):
                _shut_down(connected)

    def shut_down(self) -> None:
        """Shut down all: a thread that sends or waits on one gets an error."""
        with self._guard:
            self._ended = True
            for connected in list(self._all):
                _shut_down(connected)


def _shut_down(connected: socket.socket) -> None:
    """Not `close`, which wakes no thread that waits, nor TLS's own shutdown, which would wait itself."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)


class _Response(http.client.HTTPResponse):
    """The standard library's, which reads a chunk of a negative size to the end of the stream."""

    def _read_next_chunk_size(self) -> int:
        size: int = super()._read_next_chunk_size()  # type: ignore[misc]
        if size < 0:
            self.close()
            raise http.client.HTTPException("negative chunk size")
        return size


class LimitedAdapter(HTTPAdapter):
    """requests' own, whose connections are noted in *opened* while they are open."""

    def __init__(self, opened: OpenSockets) -> None:
        self._opened = opened
        super().__init__(pool_maxsize=POOL, max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """As requests has it."""
        super().init_poolmanager(*args, **kwargs)
        self._watch(self.poolmanager)

    def proxy_manager_for(self, proxy: Any, **kwargs: Any) -> Any:
        """As requests has it."""
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
            """`super()` in `Plain` is HTTPSConnection here."""

        class PlainPool(HTTPConnectionPool):
            ConnectionCls = Plain

        class SecurePool(HTTPSConnectionPool):
            ConnectionCls = Secure

        manager.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}
