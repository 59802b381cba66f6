"""Starts a program that reads a tar from its stdin."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from torchkiln.errors import printable

_FULL = 1 << 20  # bytes that are free on a full disk, at most
_PATIENCE = 600.0  # seconds in which a program must read a piece, or end
_WORDS = 1000  # most bytes of a program's output in a message


class ProgramFailed(Exception):
    """A program ended with an exit code other than 0, or made no progress."""


@contextlib.contextmanager
def piped(
    argv: Sequence[str], folder: Path, env: Mapping[str, str] | None = None
) -> Iterator[Callable[[bytes], None]]:
    """Start *argv*, and yield a function that writes to its stdin; at the end, wait for the program.

    If the block raises an exception, the program is killed.

    :param folder: where it writes its result.
    :raises ProgramFailed: the message has the exit code and the output; or it reads nothing for too long.
    :raises OSError: it cannot be started, or it failed and the disk of *folder* is full.
    """
    with contextlib.ExitStack() as stack:
        # In memory, because the disk may be full.
        output = stack.enter_context(os.fdopen(os.memfd_create("output"), "w+b"))
        process = stack.enter_context(
            subprocess.Popen(argv, bufsize=0, stdin=subprocess.PIPE, stdout=output, stderr=output, env=env)
        )
        stack.callback(process.kill)  # without effect after its end
        pipe = process.stdin
        assert pipe is not None  # it is a pipe
        os.set_blocking(pipe.fileno(), False)
        poll = select.poll()
        poll.register(pipe, select.POLLOUT)
        late = ProgramFailed(f"{Path(argv[0]).name} timed out: no progress in {_PATIENCE:g} seconds")

        def demand_success() -> None:
            try:
                code = process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                raise late from None
            if code:
                # The programs say "I/O error", or "invalid chksum".
                if shutil.disk_usage(folder).free < _FULL:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                output.seek(0)
                words = printable(output.read(_WORDS).decode(errors="replace").strip())
                raise ProgramFailed(f"{Path(argv[0]).name} failed with exit code {code}: {words}")

        def write(data: bytes) -> None:
            left = memoryview(data)
            while left:
                if not poll.poll(_PATIENCE * 1000):
                    raise late
                try:
                    left = left[os.write(pipe.fileno(), left) :]
                except BrokenPipeError:  # it needs no more, or it failed
                    demand_success()
                    break

        try:
            yield write
        finally:
            pipe.close()
        demand_success()
