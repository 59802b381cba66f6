"""Time limits of requests: a thread that gets no whole answer in time has its connection ended.

A socket's own time-out counts from byte to byte: a server that sends one byte a second never meets it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from torchkiln.registry.connections import Open


class Overdue(TimeoutError):
    """The answer was not complete in time."""


class Watch:
    """Ends the connections in *opened* of threads whose time is over; any number of threads."""

    def __init__(self, opened: Open) -> None:
        self._opened = opened
        self._until: dict[int, float] = {}  # by thread
        self._late: set[int] = set()
        self._changed = threading.Condition()
        self._watcher: threading.Thread | None = None
        self._closed = False

    @contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """Work of this thread that may take so long, or so long after the last `renew`.

        :raises Overdue: it took longer.
        """
        self._begin(seconds)
        try:
            yield
        except Exception as error:
            if self._end():
                raise Overdue(f"no complete answer in {seconds:g} seconds") from error
            raise
        except BaseException:
            self._end()
            raise
        if self._end():  # a body without a length just seems to end there
            raise Overdue(f"no complete answer in {seconds:g} seconds")

    def renew(self, seconds: float) -> None:
        """Give the work of this thread so long from now on."""
        with self._changed:
            if threading.get_ident() in self._until:
                self._until[threading.get_ident()] = time.monotonic() + seconds

    def close(self) -> None:
        """The watching thread ends."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _begin(self, seconds: float) -> None:
        with self._changed:
            self._late.discard(threading.get_ident())
            self._until[threading.get_ident()] = time.monotonic() + seconds
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._look, name="watch", daemon=True)
                self._watcher.start()
            self._changed.notify()

    def _end(self) -> bool:
        """Whether it was too late."""
        me = threading.get_ident()
        with self._changed:
            self._until.pop(me, None)
            late = me in self._late
            self._late.discard(me)
        return late

    def _look(self) -> None:
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                for thread in [one for one, until in self._until.items() if until <= now]:
                    del self._until[thread]
                    self._late.add(thread)
                    self._opened.end_of(thread)
                nearest = min(self._until.values(), default=None)
                self._changed.wait(None if nearest is None else max(nearest - now, 0.0))
