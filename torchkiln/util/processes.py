"""Calls → results, in processes of their own: a thread stands before each, sends it a call and waits.

The standard library's pool has a thread behind the scenes; where that cannot start or dies, as under a limit
of memory, its futures stay pending for ever. Here who waits is who sends, and a process that died is an end
of file.
"""

from __future__ import annotations

import multiprocessing
import resource
import signal
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, TypeVar

_CONTEXT = multiprocessing.get_context("spawn")  # not fork: we have threads
# Held while a process starts: it reads from us what it is to be, and says by a traceback if nothing comes.
# Re-entrant, for a signal may find the main thread in `kill`.
_STARTING = threading.RLock()
_PATIENCE = 1.0  # seconds
_LEAST = 2_000_000_000  # bytes of address space, two thirds of them for stacks and for malloc's arenas
T = TypeVar("T")


def start_no_more() -> None:
    """For whoever ends this process next: the process that is being started starts, and no other one does."""
    _STARTING.acquire(timeout=_PATIENCE)


class WorkerDied(Exception):
    """A process ended before it answered."""


class Workers:
    """At most *count* processes, each started when it is first needed; leaving the context waits for all.

    :param start: called once in each process with *arguments*, which may hold locks, events and arrays of
        multiprocessing. Ctrl-C does not reach the processes unless it unblocks SIGINT.
    :raises MemoryError: `ulimit -v` is too small. Python waits for ever for a thread that dies in its first
        steps, and under such a limit some do.
    """

    def __init__(self, count: int, start: Callable[..., object], *arguments: Any) -> None:
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY and limit < _LEAST:
            raise MemoryError(f"ulimit -v is {limit / 1e6:.0f} MB, and {_LEAST / 1e6:.0f} are needed")
        self._start, self._arguments = start, arguments
        self._threads = ThreadPoolExecutor(count, "worker", _deaf)
        self._own = threading.local()
        self._all: list[tuple[BaseProcess, Connection]] = []
        self._killed = False

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown()
        for process, connection in self._all:
            connection.close()
            process.join()

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Call *function*, which a module must hold by its name, in one of the processes.

        The future raises what the function raised, or `WorkerDied`.
        """
        return self._threads.submit(self._call, function, arguments)

    def kill(self) -> None:
        """End all of them where they stand: what is under way is `WorkerDied`, what waits is not begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with _STARTING:
            self._killed = True
            for process, _ in self._all:
                process.kill()

    def _call(self, function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        connection = self._connection()
        try:
            connection.send((function, arguments))
            result, error, told = connection.recv()
        except (EOFError, OSError) as lost:
            self._own.connection = None
            raise WorkerDied from lost
        except BaseException:  # what cannot be pickled raises anything; half an answer may be on the way
            self._own.connection = None
            raise
        if error is not None:
            raise error from _Remote(told)
        answer: T = result
        return answer

    def _connection(self) -> Connection:
        """To this thread's process."""
        found: Connection | None = getattr(self._own, "connection", None)
        if found is None:
            with _STARTING:
                if self._killed:
                    raise WorkerDied
                found, other = _CONTEXT.Pipe()
                with other:
                    process = _CONTEXT.Process(
                        target=_serve, args=(other, self._start, self._arguments), daemon=True
                    )
                    process.start()
                self._all.append((process, found))
            self._own.connection = found
        return found


class _Remote(Exception):
    """Where in the process it happened."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _serve(connection: Connection, start: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    """The life of one process; it ends with whoever sends the calls, in order or not."""
    start(*arguments)
    while True:
        try:
            function, given = connection.recv()
        except (EOFError, OSError):
            return
        answer: tuple[Any, Exception | None, str]
        try:
            answer = (function(*given), None, "")
        except Exception as error:  # sent on: the caller decides
            answer = (None, error, traceback.format_exc())
        try:
            connection.send(answer)
        except OSError:
            return


def _deaf() -> None:
    """Ctrl-C is the main thread's; the processes that this thread starts are deaf from their first moment."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
