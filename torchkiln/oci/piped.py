"""Starts a program that reads a tar from its stdin."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from torchkiln.errors import printable

_FULL = 1 << 20  # bytes that are free on a full disk, at most
_WORDS = 1000  # most bytes of a program's output in a message


class ProgramFailed(Exception):
    """A program ended with an exit code other than 0."""


@contextlib.contextmanager
def piped(
    argv: Sequence[str], folder: Path, env: Mapping[str, str] | None = None
) -> Iterator[Callable[[bytes], None]]:
    """Start *argv*, and yield a function that writes to its stdin; at the end, wait for the program.

    If the block raises an exception, the program is killed.

    :param folder: where it writes its result.
    :raises ProgramFailed: the message has the exit code and the output.
    :raises OSError: it cannot be started, or it failed and the disk of *folder* is full.
    """
    with contextlib.ExitStack() as stack:
        # In memory, because the disk may be full.
        output = stack.enter_context(os.fdopen(os.memfd_create("output"), "w+b"))
        process = stack.enter_context(
            subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=output, stderr=output, env=env)
        )
        stack.callback(process.kill)  # without effect after its end
        pipe = process.stdin
        assert pipe is not None  # it is a pipe

        def demand_success() -> None:
            if code := process.wait():
                if (
                    shutil.disk_usage(folder).free < _FULL
                ):  # the programs say "I/O error", or "invalid chksum"
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                output.seek(0)
                words = printable(output.read(_WORDS).decode(errors="replace").strip())
                raise ProgramFailed(f"{Path(argv[0]).name} failed with exit code {code}: {words}")

        def write(data: bytes) -> None:
            try:
                pipe.write(data)
            except BrokenPipeError:  # it needs no more, or it failed
                demand_success()

        try:
            yield write
        finally:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        demand_success()
