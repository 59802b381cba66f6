"""An adapter for requests whose answers begin within a time, however slowly their headers trickle.

A time limit of the library is one between two bytes: a server that sends a header of one byte a second keeps
a client for days.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

HEADERS = 40.0  # seconds for all headers of an answer
_mine = threading.local()  # the thread's own limit, by time.monotonic()


@contextlib.contextmanager
def until(end: float) -> Iterator[None]:
    """Inside, this thread's requests, redirects included, have no headers later than the moment *end*."""
    before = limit()
    _mine.end = min(before, end)
    try:
        yield
    finally:
        _mine.end = before


def limit() -> float:
    """The moment of the innermost `until` of this thread; infinity where there is none."""
    return float(getattr(_mine, "end", math.inf))


def _left() -> float:
    return min(HEADERS, limit() - time.monotonic())


class _Patient:
    """The part that both kinds of connection have."""

    def getresponse(self) -> Any:
        """The answer, once its headers are there; the connection is cut off if they take too long."""
        found: socket.socket | None = getattr(self, "sock", None)
        late = threading.Event()

        def cut() -> None:
            late.set()
            with contextlib.suppress(OSError, AttributeError):
                if found is not None:
                    found.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(max(_left(), 0.0), cut)
        timer.daemon = True
        timer.start()
        try:
            return super().getresponse()  # type: ignore[misc]  # of the class that stands beside this one
        except Exception as error:
            if late.is_set():
                raise TimeoutError("the headers took too long") from error
            raise
        finally:
            timer.cancel()


class _Http(_Patient, HTTPConnection):
    """http"""


class _Https(_Patient, HTTPSConnection):
    """https"""


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _Http


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _Https


class PatientAdapter(HTTPAdapter):
    """requests' own, with our connections; also behind a proxy."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """As requests has it."""
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> urllib3.ProxyManager:
        """As requests has it."""
        manager: urllib3.ProxyManager = super().proxy_manager_for(*args, **kwargs)
        manager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}
        return manager
