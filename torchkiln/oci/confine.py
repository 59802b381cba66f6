"""Runs a function in a thread that can write only below one folder, if the kernel supports Landlock.

Defence in depth: `extract` does not write outside its folder; if it had a bug, the kernel would stop it.
docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import ctypes
import gc
import os
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls, the same on every 64-bit architecture
_VERSION_FLAG, _PATH_BENEATH, _NO_NEW_PRIVS = 1, 1, 38
_MIN_VERSION = 2  # the first version that can allow hard links between folders
_WRITE_FILE, _REMOVE_DIR, _REMOVE_FILE = 1 << 1, 1 << 4, 1 << 5
_MAKE = {"char": 6, "dir": 7, "reg": 8, "sock": 9, "fifo": 10, "block": 11, "sym": 12}
_REFER = 1 << 13
_ALL = _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _REFER | sum(1 << bit for bit in _MAKE.values())
_ALLOWED = _ALL & ~sum(1 << _MAKE[kind] for kind in ("char", "sock", "fifo", "block"))


def confined(folder: Path, work: Callable[[Callable[[], None]], T]) -> T:
    """Call *work* in a thread that can write only below *folder*; return its result.

    *work* gets a function that it must call often. That function raises InterruptedError once the caller was
    interrupted, because a thread cannot be stopped from outside.
    """
    interrupted = threading.Event()

    def check() -> None:
        if interrupted.is_set():
            raise InterruptedError("interrupted")

    def run() -> T:
        _restrict(folder)
        return work(check)

    # At its end, `with` waits for the thread.
    with _COLLECTOR.paused(), ThreadPoolExecutor(1, "confined") as pool:
        try:
            return pool.submit(run).result()
        finally:
            interrupted.set()


class _Collector:
    """Python's garbage collector, which runs the finalizers of all objects in any thread.

    In a restricted one they fail, for example those that delete the semaphores of multiprocessing.
    """

    def __init__(self) -> None:
        self._guard, self._count, self._enabled = threading.Lock(), 0, False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No collection in this context, which several threads may enter."""
        with self._guard:
            self._enabled = gc.isenabled() if not self._count else self._enabled
            self._count += 1
            gc.disable()
        try:
            yield
        finally:
            with self._guard:
                self._count -= 1
                if self._enabled and not self._count:
                    gc.enable()


_COLLECTOR = _Collector()


def version() -> int:
    """The version of Landlock in the kernel; 0 if the kernel has no Landlock, or it is disabled."""
    return max(int(ctypes.CDLL(None).syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION_FLAG)), 0)


def _restrict(folder: Path) -> None:
    """Restrict this thread and those that it starts, permanently; do nothing without Landlock."""
    if version() < _MIN_VERSION:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    ruleset = _checked(libc.syscall(_CREATE, struct.pack("Q", _ALL), ctypes.c_size_t(8), 0))
    try:
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _checked(libc.syscall(_ADD, ruleset, _PATH_BENEATH, struct.pack("=Qi", _ALLOWED, descriptor), 0))
        finally:
            os.close(descriptor)
        _checked(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))  # of this thread only
        _checked(libc.syscall(_RESTRICT, ruleset, 0))
    finally:
        os.close(ruleset)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
