"""Limits the time of a request, or of a transfer without progress: then its connection is shut down.

A socket time-out restarts with each byte, so a server that sends one byte a second never reaches it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torchkiln.util.http.connections import OpenSockets

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
            late = me in self._late
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
