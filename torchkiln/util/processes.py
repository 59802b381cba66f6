"""Calls functions in worker processes; one thread for each process sends the calls and waits for results.

The futures of `ProcessPoolExecutor` stay pending for ever if its background thread cannot start or dies, as
happens under a memory limit. Here the thread that sends a call also waits for it, and sees a dead process as
end of file.
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
from typing import Any, TypeVar

SPAWN = multiprocessing.get_context("spawn")  # not fork: this process has threads
# Held while a process starts: it prints a traceback if its parent ends before all start-up data is sent.
# Re-entrant, because a signal handler may call `stop_starting` while the main thread is in `kill`.
_STARTING = threading.RLock()
_START_SECONDS = 1.0
_ADDRESS_SPACE = 2_000_000_000  # bytes; two thirds are for stacks and for malloc's arenas
T = TypeVar("T")


def stop_starting() -> None:
    """Wait until a process that is being started has started, and start no others. Call it before an exit."""
    _STARTING.acquire(timeout=_START_SECONDS)


class WorkerDied(Exception):
    """A process ended before it answered."""


class Workers:
    """At most *count* processes, each started when it is first needed; leaving the context waits for all.

    :param start: called once in each process with *arguments*, which may include locks, events and arrays of
        multiprocessing. SIGINT is blocked in the processes unless *start* unblocks it.
    :raises MemoryError: `ulimit -v` is too small. Under such a limit a thread may die while it starts, and
        Python waits for it for ever.
    """

    def __init__(self, count: int, start: Callable[..., object], *arguments: Any) -> None:
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY and limit < _ADDRESS_SPACE:
            raise MemoryError(f"ulimit -v is {limit / 1e6:.0f} MB, {_ADDRESS_SPACE / 1e6:.0f} MB are needed")
        self._start, self._arguments = start, arguments
        # Ctrl-C is left to the main thread; processes that these threads start inherit the mask.
        blocked = (signal.SIG_BLOCK, {signal.SIGINT})
        self._threads = ThreadPoolExecutor(count, "worker", signal.pthread_sigmask, blocked)
        self._own = threading.local()
        self._all: list[tuple[BaseProcess, Connection]] = []
        self._killed = False

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
        for process, connection in self._all:
            connection.close()
            process.join()

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Call *function*, which must be importable by name, in one of the processes.

        The future raises the function's exception or `WorkerDied`.
        """
        return self._threads.submit(self._call, function, arguments)

    def kill(self) -> None:
        """Kill all processes: running calls raise `WorkerDied`, pending ones are cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with _STARTING:
            self._killed = True
            for process, _ in self._all:
                process.kill()

    def _call(self, function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        connection = self._connection()
        try:
            connection.send((function, arguments))
            result, error, trace = connection.recv()
        except (EOFError, OSError) as lost:
            self._own.connection = None
            raise WorkerDied from lost
        except BaseException:
            # Pickling can raise anything. A result may still arrive, so this connection is not used again.
            self._own.connection = None
            raise
        if error is not None:
            raise error from RuntimeError(f"\n{trace}")
        typed: T = result
        return typed

    def _connection(self) -> Connection:
        """The connection to this thread's process, which is started if necessary."""
        found: Connection | None = getattr(self._own, "connection", None)
        if found is None:
            with _STARTING:
                if self._killed:
                    raise WorkerDied
                found, other = SPAWN.Pipe()
                with other:
                    process = SPAWN.Process(
                        target=_serve, args=(other, self._start, self._arguments), daemon=True
                    )
                    process.start()
                self._all.append((process, found))
            self._own.connection = found
        return found


def _serve(connection: Connection, start: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    start(*arguments)
    while True:
        try:
            function, call_arguments = connection.recv()
        except (EOFError, OSError):
            return
        result: tuple[Any, Exception | None, str]
        try:
            result = (function(*call_arguments), None, "")
        except Exception as error:  # the caller handles it
            result = (None, error, traceback.format_exc())
        try:
            connection.send(result)
        except OSError:
            return
