"""Creates temporary folders and removes those of killed processes.

A process, or a child that inherits the descriptor, holds a kernel lock on its folder while it runs. The next
use removes folders without a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from torchkiln.errors import ConfigError
from torchkiln.util.files import locked, named, remove_tree
from torchkiln.util.ownership import fault

_NAME = re.compile(r"torchkiln-[a-z_]+-[0-9a-f]{16}")


@contextlib.contextmanager
def scratch(what: str, parent: Path | None = None) -> Iterator[Path]:
    """A new private folder for *what* in *parent*, by default $TMPDIR; it is deleted after the block.

    :raises ConfigError: other users could replace it, or it cannot be created.
    """
    top = (parent or Path(tempfile.gettempdir())).absolute()
    # The check is for a path inside *top*: *top* itself may be writable by all if it has the sticky bit.
    if reason := fault(top / "torchkiln"):
        raise ConfigError(
            f"temporary files in {top} can be changed by other users: {reason}",
            hint="set TMPDIR to a folder of your own",
        )
    sweep(top := named(top))
    try:
        path, lock = _create(top, what)
    except OSError as error:
        raise ConfigError(
            f"cannot create a temporary folder in {top}: {error.strerror}",
            hint="set TMPDIR to another folder",
        ) from error
    try:
        yield path
    finally:
        remove_tree(path)
        os.close(lock)
        sweep(top)  # again: children of a killed process may have used its folder during the first sweep


def held(path: Path) -> int:
    """A descriptor of the `scratch` folder *path*, for a child: `sweep` keeps the folder while it is open."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


def sweep(top: Path | None = None) -> int:
    """Remove the folders of killed processes in *top*, by default $TMPDIR; returns their number.

    Folders with a mounted file system (`remove_tree`), folders of other users and targets of links are kept.
    """
    top = top or Path(tempfile.gettempdir())
    swept = 0
    try:
        names = [name for name in os.listdir(top) if _NAME.fullmatch(name)]
    except OSError:
        return 0
    for name in names:
        path = top / name
        with contextlib.suppress(OSError):
            found = path.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                with locked(path):
                    remove_tree(path)
                    swept += not path.exists()
    return swept


def _create(top: Path, what: str) -> tuple[Path, int]:
    while True:
        path = top / f"torchkiln-{what}-{secrets.token_hex(8)}"
        path.mkdir(mode=0o700)
        lock = -1
        try:
            lock = held(path)
            if os.path.samestat(os.stat(path), os.fstat(lock)):
                return path, lock
        except (BlockingIOError, FileNotFoundError):  # a concurrent sweep removed it before the lock
            pass
        if lock >= 0:
            os.close(lock)
