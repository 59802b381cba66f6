"""A function → run in a thread that the kernel lets write below one folder only, where it has Landlock.

A second wall: `extract` does not leave its folder, and if it had a fault, the kernel would not let it.
docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls, the same on every 64-bit architecture
_VERSION_FLAG, _PATH_BENEATH, _NO_NEW_PRIVS = 1, 1, 38
_NEEDED = 2  # the version from which hard links between folders can be allowed
_WRITE_FILE, _REMOVE_DIR, _REMOVE_FILE = 1 << 1, 1 << 4, 1 << 5
_MAKE = {"char": 6, "dir": 7, "reg": 8, "sock": 9, "fifo": 10, "block": 11, "sym": 12}
_REFER = 1 << 13
_ALL = _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _REFER | sum(1 << bit for bit in _MAKE.values())
_ALLOWED = _ALL & ~sum(1 << _MAKE[kind] for kind in ("char", "sock", "fifo", "block"))


def confined(folder: Path, work: Callable[[Callable[[], None]], T]) -> T:
    """What *work* returns or raises. It is handed a function to call often, which raises once the caller is
    interrupted: a thread cannot be ended from outside.
    """
    ended = threading.Event()
    results: list[T] = []
    errors: list[BaseException] = []

    def check() -> None:
        if ended.is_set():
            raise InterruptedError("interrupted")

    def run() -> None:
        try:
            _restrict(folder)
            results.append(work(check))
        except BaseException as error:  # raised again below, in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="confined")
    thread.start()
    try:
        thread.join()
    except BaseException:
        ended.set()
        thread.join()
        raise
    if errors:
        raise errors[0]
    return results[0]


def version() -> int:
    """Of the kernel's Landlock; 0: it has none, or it is switched off."""
    return max(int(ctypes.CDLL(None).syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION_FLAG)), 0)


def _restrict(folder: Path) -> None:
    """This thread, and those that it starts, for ever; nothing where the kernel has no such Landlock."""
    if version() < _NEEDED:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    rules = _called(libc.syscall(_CREATE, struct.pack("Q", _ALL), ctypes.c_size_t(8), 0))
    try:
        place = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _called(libc.syscall(_ADD, rules, _PATH_BENEATH, struct.pack("=Qi", _ALLOWED, place), 0))
        finally:
            os.close(place)
        _called(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))  # of this thread alone
        _called(libc.syscall(_RESTRICT, rules, 0))
    finally:
        os.close(rules)


def _called(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
