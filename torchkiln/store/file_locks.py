"""Locks files with flock; a lock file records its holder, the start time and the purpose.

The kernel releases a flock when its process ends, so no lock becomes stale, even if containers with their
own pids share the folder. fcntl's record locks belong to the whole process and do not separate its threads.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from torchkiln.util import codec
from torchkiln.util.strict_json import json_of

_NOTICE_SECONDS = 1.5  # of waiting before `on_wait` is called
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_POLL_SECONDS = 0.05  # polled, because a blocking flock in a thread cannot be cancelled


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """The process that holds a lock. `needs`: paths below the cache; None: not recorded."""

    pid: int
    host: str
    since: float  # seconds since the epoch
    what: str  # "makes layer torch 2.7.1"
    needs: tuple[str, ...] | None = None

    def __str__(self) -> str:
        """`process 1234 (since 14:02), which makes layer torch 2.7.1`."""
        if not self.pid:
            return "another process"
        elsewhere = f" on {self.host}" if self.host != os.uname().nodename else ""
        since = time.strftime("%H:%M", time.localtime(self.since))
        what = f", which {self.what}" if self.what else ""
        return f"process {self.pid}{elsewhere} (since {since}){what}"


@contextlib.contextmanager
def hold(
    path: Path,
    what: str = "",
    *,
    needs: Sequence[str] | None = None,
    keep: bool = False,
    on_wait: Callable[[Holder], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Hold the lock *path* in an existing folder; the file is deleted afterwards unless *keep*.

    :param on_wait: called once with the holder, after 1.5 seconds.
    :param check: called while waiting; an exception ends the wait.
    :raises OSError: the file cannot be created.
    """
    descriptor = acquire(path, what, needs=needs, on_wait=on_wait, check=check)
    try:
        yield
    finally:
        if not keep:
            path.unlink(missing_ok=True)  # before the release: `_try` then rejects a lock on the deleted file
        os.close(descriptor)


def acquire(
    path: Path,
    what: str = "",
    *,
    needs: Sequence[str] | None = None,
    on_wait: Callable[[Holder], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> int:
    """Like `hold`, but hold the lock until the returned descriptor is closed or the process ends."""
    started, notified = time.monotonic(), False
    while (descriptor := _try(path)) is None:
        check()
        if not notified and time.monotonic() - started > _NOTICE_SECONDS and (other := holder(path)):
            on_wait(other)
            notified = True
        time.sleep(_POLL_SECONDS)
    own = Holder(
        pid=os.getpid(),
        host=os.uname().nodename,
        since=time.time(),
        what=what,
        needs=None if needs is None else tuple(needs),
    )
    with contextlib.suppress(OSError):  # on a full disk the lock is valid, but the file names no holder
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(own)).encode(), 0)
    return descriptor


def in_use(folder: Path) -> bool:
    """Whether a process has locked the folder itself, as `runtimes.rootfs` does with a running image."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def holder(path: Path) -> Holder | None:
    """The present holder of *path*; None: it is free, even if a dead process left the file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    except OSError:
        return None
    try:
        # Shared, so that concurrent checks do not see each other as a holder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        with contextlib.suppress(ValueError):
            return codec.typed(Holder, json_of(os.pread(descriptor, os.fstat(descriptor).st_size, 0)))
        return Holder(pid=0, host="", since=0.0, what="")  # it is starting, or its disk is full
    else:
        return None
    finally:
        os.close(descriptor)


def clear(path: Path) -> bool:
    """Delete the lock file *path* unless it is held; returns whether it is gone."""
    try:
        descriptor = _try(path, os.O_RDWR)
    except OSError:
        return not path.exists()
    if descriptor is None:
        return False
    path.unlink(missing_ok=True)  # while this process holds the lock, so that no other process gets it
    os.close(descriptor)
    return True


def _try(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int | None:
    """The descriptor of the lock; None: another process holds it."""
    descriptor, locked = os.open(path, flags | _FLAGS, 0o666), False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The former holder may have deleted the file since we opened it; then this lock has no effect.
        locked = os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        pass
    finally:
        if not locked:
            os.close(descriptor)
    return descriptor if locked else None
