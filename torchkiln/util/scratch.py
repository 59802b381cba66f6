"""Temporary folders that a killed process does not leave behind for good.

Each is held by a kernel lock while its process, or a program that was given the lock, is alive. The next use
removes what is held no longer.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

from torchkiln.errors import ConfigError
from torchkiln.util.files import remove_tree
from torchkiln.util.ownership import fault

_NAME = re.compile(r"torchkiln-[a-z_]+-[0-9a-f]{16}")


@contextlib.contextmanager
def scratch(what: str, parent: Path | None = None) -> Iterator[Path]:
    """A new folder for *what* below *parent*, else $TMPDIR, that only we can enter. It goes with the block.

    :raises ConfigError: other users could swap it for one of theirs, or it cannot be made.
    """
    top = (parent or Path(tempfile.gettempdir())).absolute()
    _check(top)
    sweep(top)
    try:
        path, lock = _made(top, what)
    except OSError as error:
        raise ConfigError(
            f"no temporary folder can be made in {top}: {error.strerror}", hint="set TMPDIR to another folder"
        ) from error
    try:
        yield path
    finally:
        remove_tree(path)
        os.close(lock)
        sweep(top)  # what was still in use by the programs of a killed process when we began


def held(path: Path) -> int:
    """A descriptor of the `scratch` folder *path*, for a child: while that has it open, nobody sweeps it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


def sweep(top: Path | None = None) -> int:
    """Remove what killed processes of ours left in *top*, else in $TMPDIR; how many folders that were.

    Never what is mounted (`remove_tree`), what is another user's, or what a link leads to.
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
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(descriptor).st_uid != os.geteuid():
                    continue
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(path)
                swept += not path.exists()
            finally:
                os.close(descriptor)
    return swept


def _made(top: Path, what: str) -> tuple[Path, int]:
    while True:
        path = top / f"torchkiln-{what}-{secrets.token_hex(8)}"
        path.mkdir(mode=0o700)
        lock = -1
        try:
            lock = held(path)
            if os.path.samestat(os.stat(path), os.fstat(lock)):
                return path, lock
        except (BlockingIOError, FileNotFoundError):  # a sweep took it for dead in this instant
            pass
        if lock >= 0:
            os.close(lock)


def _check(top: Path) -> None:
    # Of the folder in it, which is not there yet: $TMPDIR itself may be open to all with a sticky bit.
    if told := fault(top / "torchkiln"):
        raise ConfigError(
            f"temporary files in {top} can be changed by other users: {told}",
            hint="set TMPDIR to a folder of your own",
        )
