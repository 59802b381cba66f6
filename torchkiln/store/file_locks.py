"""A file → held by one process: kernel locks that tell who has them, since when and what for.

flock, and neither a pid file nor fcntl's record locks: the kernel lets go of it when its process ends,
however that ends. So nobody judges by a pid whether a lock is stale, and pids of other containers on the same
folder mean no harm. A record lock would belong to the whole process and not keep its threads apart.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_PATIENCE = 1.5  # seconds until somebody who waits is told for whom
_LOOK = 0.05  # seconds between two tries; a blocking flock in a thread could not be called off


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Who has a lock. `needs`: paths below the cache; None where the lock does not say."""

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
    """Hold the lock *path*, whose folder exists; the file goes with the lock unless *keep*.

    :param on_wait: is told once, after a second and a half, who has it.
    :param check: is called while waiting; what it raises ends the wait.
    :raises OSError: the file cannot be made.
    """
    descriptor = acquire(path, what, needs=needs, on_wait=on_wait, check=check)
    try:
        yield
    finally:
        if not keep:
            path.unlink(missing_ok=True)  # before it is free: whoever has it then sees that it has no name
        os.close(descriptor)


def acquire(
    path: Path,
    what: str = "",
    *,
    needs: Sequence[str] | None = None,
    on_wait: Callable[[Holder], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> int:
    """As `hold`, but for as long as the returned descriptor is open: to the end of the process, say."""
    started, told = time.monotonic(), False
    while (descriptor := _try(path)) is None:
        check()
        if not told and time.monotonic() - started > _PATIENCE and (other := holder(path)):
            on_wait(other)
            told = True
        time.sleep(_LOOK)
    text: dict[str, object] = {"pid": os.getpid(), "host": os.uname().nodename, "since": time.time()}
    text |= {"what": what, "needs": None if needs is None else list(needs)}
    with contextlib.suppress(OSError):  # a full disk: the lock holds, it only does not say whose it is
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(text).encode(), 0)
    return descriptor


def in_use(folder: Path) -> bool:
    """Whether somebody holds the folder itself, as `runtimes.rootfs` does with an image that runs."""
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
    """Who holds *path* now; None: nobody. What a dead process left written there does not count."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # Shared, so that two who only look do not take each other for a holder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _parse(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
    else:
        return None
    finally:
        os.close(descriptor)


def clear(path: Path) -> bool:
    """Delete the lock file *path* unless somebody holds it; whether it is gone."""
    try:
        descriptor = _try(path, os.O_RDWR)
    except OSError:
        return not path.exists()
    if descriptor is None:
        return False
    path.unlink(missing_ok=True)  # while it is ours: a look and then a deletion could hit another's lock
    os.close(descriptor)
    return True


def _try(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int | None:
    """The descriptor of the lock if it could be had at once."""
    descriptor, ours = os.open(path, flags | os.O_CLOEXEC, 0o666), False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Who held it may have taken its name away since we opened it: then this lock keeps nobody out.
        ours = os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        pass
    finally:
        if not ours:
            os.close(descriptor)
    return descriptor if ours else None


def _parse(text: bytes) -> Holder:
    try:
        told = json.loads(text)
        needs = told["needs"]
        return Holder(
            pid=int(told["pid"]),
            host=str(told["host"]),
            since=float(told["since"]),
            what=str(told["what"]),
            needs=None if needs is None else tuple(map(str, needs)),
        )
    except (ValueError, KeyError, TypeError):
        return Holder(pid=0, host="", since=0.0, what="")
