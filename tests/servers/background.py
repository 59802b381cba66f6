"""Run a server in a thread while a context lasts."""

from __future__ import annotations

import socketserver
import threading
from http.server import ThreadingHTTPServer
from typing import Any, TypeVar

_T = TypeVar("_T", bound="InBackground")
_LOOK = 0.01  # seconds between checks whether to stop


class _Quiet:
    """A server that ignores clients that disconnect."""

    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None: ...


class QuietServer(_Quiet, socketserver.ThreadingTCPServer): ...


class QuietHttpServer(_Quiet, ThreadingHTTPServer): ...


class InBackground:
    """A context manager for a server; the constructor of a subclass creates `_server`."""

    _server: socketserver.BaseServer

    def __enter__(self: _T) -> _T:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_LOOK,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
