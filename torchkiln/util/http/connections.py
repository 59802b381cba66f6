"""Provides a requests adapter that limits headers and lets other threads shut down its sockets.

After Ctrl-C, a transfer must not wait for the time-out of a silent server.
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
_HEADERS = 64 << 10  # bytes of a response's headers


class OpenSockets:
    """The open sockets of all threads.

    Sockets, not connections, because some connections release their socket before the body is read.
    """

    def __init__(self) -> None:
        self._all: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._by_thread: dict[int, weakref.ref[socket.socket]] = {}
        self._guard = threading.Lock()
        self._refused: set[int] = set()  # threads
        self._ended = False

    def use(self, connected: socket.socket) -> None:
        """Record that this thread uses *connected*; shut it down if this thread may use no sockets."""
        me = threading.get_ident()
        with self._guard:
            self._all.add(connected)
            self._by_thread[me] = weakref.ref(connected)
            if self._ended or me in self._refused:
                _shut_down(connected)

    def shut_down_of(self, thread: int) -> None:
        """Shut down the socket that *thread* uses, and those that it begins to use before `allow`."""
        with self._guard:
            self._refused.add(thread)
            used = self._by_thread.get(thread)
            if used and (connected := used()):
                _shut_down(connected)

    def allow(self, thread: int) -> None:
        """Let *thread* use sockets again."""
        with self._guard:
            self._refused.discard(thread)

    def shut_down(self) -> None:
        """Shut down all sockets: threads that send or wait get an error."""
        with self._guard:
            self._ended = True
            for connected in list(self._all):
                _shut_down(connected)


def _shut_down(connected: socket.socket) -> None:
    """Shut down the TCP socket. `close` does not wake a waiting thread, and a TLS shutdown could block."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)


class _Response(http.client.HTTPResponse):
    """Refuses negative chunk sizes, which http.client reads as "to the end of the stream"."""

    def _read_next_chunk_size(self) -> int:
        size: int = super()._read_next_chunk_size()  # type: ignore[misc]
        if size < 0:
            self.close()
            raise http.client.HTTPException("negative chunk size")
        return size


class LimitedAdapter(HTTPAdapter):
    """An HTTPAdapter that records its open connections in *opened*."""

    def __init__(self, opened: OpenSockets) -> None:
        self._opened = opened
        super().__init__(pool_maxsize=POOL, max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """As in `HTTPAdapter`; also watches the connections."""
        super().init_poolmanager(*args, **kwargs)
        self._watch(self.poolmanager)

    def proxy_manager_for(self, proxy: Any, **kwargs: Any) -> Any:
        """As in `HTTPAdapter`; also watches the connections."""
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
            """Like `Plain`, for TLS: `super()` in the methods of `Plain` is HTTPSConnection here."""

            def connect(self) -> None:
                with contextlib.ExitStack() as self._connecting:
                    super().connect()

            def _new_conn(self) -> socket.socket:
                # TLS takes the descriptor away from this object before its handshake, which can be endless.
                connected = super()._new_conn()
                opened.use(self._connecting.enter_context(connected.dup()))
                return connected

        class PlainPool(HTTPConnectionPool):
            ConnectionCls = Plain

        class SecurePool(HTTPSConnectionPool):
            ConnectionCls = Secure

        manager.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}
