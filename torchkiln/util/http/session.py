"""Provides a requests.Session with limits on time, headers and redirects; other threads can shut it down.

After Ctrl-C, a transfer must not wait for the time-out of a silent server. The time of a request, or of a
transfer without progress, is limited by shutting its connection down: a socket time-out restarts with each
byte, so a server that sends one byte a second never reaches it.
"""

from __future__ import annotations

import contextlib
import http.client
import math
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urljoin

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection

from torchkiln.util.http import redirects

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


LEAST = 64 << 10  # bytes that count as progress of a transfer
_IDLE = 1.0  # seconds without a limit after which the watcher thread ends


class Overdue(TimeoutError):
    """The response was not complete in time."""


class Deadlines:
    """Shuts down the sockets in *opened* of threads that exceed their deadline."""

    def __init__(self, opened: OpenSockets) -> None:
        self._opened = opened
        self._until: dict[int, float] = {}  # by thread, by time.monotonic()
        self._bounds: dict[int, float] = {}  # by thread, set by `within`
        self._late: set[int] = set()
        self._changed = threading.Condition()
        self._watcher: threading.Thread | None = None

    @contextmanager
    def limit(self, seconds: float, *, renewed: bool = False) -> Iterator[Callable[[int], None]]:
        """Let the block take at most *seconds*. Inside another limit, the earlier deadline applies.

        :param renewed: let it take so long for each `LEAST` bytes, which it reports to the function.
        :raises Overdue: it took longer.
        """
        seconds, outer = self._begin(seconds)
        missed = f"less than {LEAST >> 10} KiB" if renewed else "no complete response"
        overdue, moved = Overdue(f"timed out: {missed} in {round(seconds, 1):g} seconds"), 0

        def report(count: int) -> None:
            nonlocal moved
            moved += count
            if renewed and moved >= LEAST:
                moved = 0
                self._renew(seconds)

        try:
            yield report
        except Exception as error:
            if self._end(outer):
                raise overdue from error
            raise
        except BaseException:  # KeyboardInterrupt, for example, is not an overdue response
            self._end(outer)
            raise
        if self._end(outer):  # no error: after a shutdown, a body without a length seems complete
            raise overdue

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Cap every limit that this thread sets in the block at *seconds* from now."""
        me = threading.get_ident()
        outer = self._bounds.get(me, math.inf)
        self._bounds[me] = min(time.monotonic() + seconds, outer)
        try:
            yield
        finally:
            self._bounds[me] = outer

    def left(self, seconds: float) -> float:
        """*seconds*, or fewer if `within` leaves this thread less time."""
        bound = self._bounds.get(threading.get_ident(), math.inf)
        return max(min(seconds, bound - time.monotonic()), 0.0)

    def _renew(self, seconds: float) -> None:
        """Set the deadline of this thread to *seconds* from now."""
        me = threading.get_ident()
        with self._changed:
            if me in self._until and me not in self._late:
                self._until[me] = time.monotonic() + self.left(seconds)

    def _begin(self, seconds: float) -> tuple[float, float | None]:
        """Set a deadline; returns the seconds until then, and the outer deadline."""
        me, now = threading.get_ident(), time.monotonic()
        with self._changed:
            outer = self._until.get(me)
            seconds = self.left(seconds) if outer is None else min(self.left(seconds), max(outer - now, 0.0))
            self._restart(me, now + seconds)
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="deadlines", daemon=True)
                self._watcher.start()
            self._changed.notify()
        return seconds, outer

    def _end(self, outer: float | None) -> bool:
        """Restore the outer deadline; return whether the inner deadline was exceeded."""
        me = threading.get_ident()
        with self._changed:
            # By the clock, too: the watcher may not have run since an inner limit with this deadline ended.
            late = me in self._late or self._until.get(me, math.inf) <= time.monotonic()
            self._restart(me, outer)
            if outer is not None:
                self._changed.notify()
        return late

    def _restart(self, me: int, until: float | None) -> None:
        """Replace the deadline of the thread *me*; if that has passed, the watcher shuts down its socket."""
        self._late.discard(me)
        self._opened.allow(me)
        if until is None:
            self._until.pop(me, None)
        else:
            self._until[me] = until

    def _watch(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                ahead = {thread: until for thread, until in self._until.items() if thread not in self._late}
                for thread in [one for one, until in ahead.items() if until <= now]:
                    del ahead[thread]
                    self._late.add(thread)
                    self._opened.shut_down_of(thread)
                nearest = min(ahead.values(), default=None)
                self._changed.wait(_IDLE if nearest is None else max(nearest - now, 0.0))
                if nearest is None and not self._until:
                    self._watcher = None
                    return


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """TLS and proxy settings. `proxy` is used in addition to those of the environment."""

    ca_bundle: str | None = None
    client_cert: str | None = None
    proxy: str | None = field(default=None, repr=False)


DIRECT = Network()


class LimitedSession(requests.Session):
    """Follows only redirects in which `redirects.unsafe` finds no fault, without reading their bodies.

    The CA bundle of *network* takes precedence over REQUESTS_CA_BUNDLE, unlike in requests.

    :raises UnsafeRedirect: from each request.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.opened = OpenSockets()
        self.deadlines = Deadlines(self.opened)
        self.verify = network.ca_bundle or True
        self.cert = network.client_cert
        self.max_redirects = redirects.MAX_REDIRECTS
        if network.proxy:
            self.proxies = {"http": network.proxy, "https": network.proxy}
        for scheme in ("http://", "https://"):
            self.mount(scheme, LimitedAdapter(self.opened))

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        """As in requests, with the CA bundle of the network by default."""
        if self.verify is not True:
            kwargs.setdefault("verify", self.verify)
        return super().request(*args, **kwargs)

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """The target of a redirect.

        :raises UnsafeRedirect: it is not followed.
        """
        try:
            target = super().get_redirect_target(resp)
            why = redirects.unsafe(urljoin(resp.url, target), resp.url) if target else ""
        except ValueError:
            target, why = "", "invalid URL"
        if (target or why) and resp.raw is not None:
            resp.close()
            resp._content = b""  # otherwise requests reads its body to the end
            resp._content_consumed = True  # type: ignore[attr-defined]
        if why:
            raise redirects.UnsafeRedirect(why, resp.url)
        return target
