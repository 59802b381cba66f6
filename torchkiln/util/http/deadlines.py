"""Time limits of whole answers: a thread that does not have its answer in time has its connection shut down.

A socket's own time-out counts from byte to byte: a server that sends one byte a second never meets it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from torchkiln.util.http.connections import OpenSockets

_IDLE = 1.0  # seconds without a limit after which the watching thread ends


class Overdue(TimeoutError):
    """The answer was not complete in time."""


class Deadlines:
    """Shuts down the sockets in *opened* of threads whose time is over; any number of threads."""

    def __init__(self, opened: OpenSockets) -> None:
        self._opened = opened
        self._until: dict[int, float] = {}  # by thread, by time.monotonic()
        self._bounds: dict[int, float] = {}  # of `within`
        self._late: set[int] = set()
        self._changed = threading.Condition()
        self._watcher: threading.Thread | None = None

    @contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """Work of this thread that may take so long, or so long after the last `renew`.

        Within another limit, the earlier of both holds.

        :raises Overdue: it took longer.
        """
        outer = self._begin(seconds)
        try:
            yield
        except Exception as error:
            if self._end(outer):
                raise Overdue(f"no complete answer in {seconds:g} seconds") from error
            raise
        except BaseException:
            self._end(outer)
            raise
        if self._end(outer):  # a body without a length just seems to end there
            raise Overdue(f"no complete answer in {seconds:g} seconds")

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Inside, no limit of this thread lasts longer than so many seconds from now on."""
        me, outer = threading.get_ident(), self._bounds.get(threading.get_ident())
        end = time.monotonic() + seconds
        self._bounds[me] = end if outer is None else min(end, outer)
        try:
            yield
        finally:
            if outer is None:
                del self._bounds[me]
            else:
                self._bounds[me] = outer

    def left(self, seconds: float) -> float:
        """Of *seconds* from now on, how many `within` leaves this thread."""
        bound = self._bounds.get(threading.get_ident())
        return seconds if bound is None else max(min(seconds, bound - time.monotonic()), 0.0)

    def renew(self, seconds: float) -> None:
        """Give the work of this thread so long from now on."""
        with self._changed:
            if threading.get_ident() in self._until:
                self._until[threading.get_ident()] = time.monotonic() + seconds

    def _begin(self, seconds: float) -> float | None:
        """Returns the limit that held before."""
        me = threading.get_ident()
        with self._changed:
            outer = self._until.get(me)
            end = time.monotonic() + self.left(seconds)
            self._late.discard(me)
            self._until[me] = end if outer is None else min(end, outer)
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="deadlines", daemon=True)
                self._watcher.start()
            self._changed.notify()
        return outer

    def _end(self, outer: float | None) -> bool:
        """Whether it was too late."""
        me = threading.get_ident()
        with self._changed:
            self._until.pop(me, None)
            late = me in self._late
            self._late.discard(me)
            if outer is not None:
                self._until[me] = outer
                self._changed.notify()
        return late

    def _watch(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for thread in [one for one, until in self._until.items() if until <= now]:
                    del self._until[thread]
                    self._late.add(thread)
                    self._opened.shut_down_of(thread)
                nearest = min(self._until.values(), default=None)
                self._changed.wait(_IDLE if nearest is None else max(nearest - now, 0.0))
                if nearest is None and not self._until:
                    self._watcher = None
                    return
