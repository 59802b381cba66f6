"""Receives the output of a process while it runs, and kills the process when its time is over."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from collections.abc import Callable
from typing import Protocol

OnLine = Callable[[bytes], None]  # called with each line, without its line break
_CHUNK = 1 << 16
_LINE_LIMIT = 16 << 20  # bytes, as many as a report may have; the rest of a longer line is dropped
_TAIL = 1 << 20  # bytes


class Sink(Protocol):
    """Where the output of a command is written."""

    def write(self, data: bytes, /) -> object: ...

    def flush(self) -> object: ...


class LineSink:
    """Calls a function with each line that is written, as soon as the line is complete."""

    def __init__(self, on_line: OnLine) -> None:
        self._on_line = on_line
        self._rest = bytearray()  # the start of the line that is not complete

    def write(self, data: bytes) -> int:
        first, *others = data.split(b"\n")
        self._add(first)
        for part in others:
            self._pass_on()
            self._add(part)
        return len(data)

    def flush(self) -> None:
        """Do nothing: a line that is not complete is not passed on."""

    def close(self) -> None:
        """Pass on a last line without a line break, when the output has ended."""
        if self._rest:
            self._pass_on()

    def _add(self, part: bytes) -> None:
        self._rest += part[: _LINE_LIMIT - len(self._rest)]

    def _pass_on(self) -> None:
        line = bytes(self._rest)
        self._rest.clear()
        self._on_line(line)


class Tail:
    """Keeps the end of the output, so that endless output does not fill this machine's memory."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        self._data += data
        del self._data[:-_TAIL]
        return len(data)

    def flush(self) -> None:
        """Do nothing."""

    def getvalue(self) -> bytes:
        """The last 1 MiB."""
        return bytes(self._data)


def receive(
    process: subprocess.Popen[bytes],
    out: Sink,
    err: Sink,
    *,
    timeout_s: float | None,
    kill: Callable[[subprocess.Popen[bytes]], None],
) -> bool:
    """Write the output of *process* to *out* and *err* until it ends; return whether it exceeded *timeout_s*.

    :param kill: ends the process and all that it started; its output so far is still received.
    """
    ends = None if timeout_s is None else time.monotonic() + timeout_s
    timed_out = False

    def remaining() -> float | None:
        return None if ends is None else max(0.0, ends - time.monotonic())

    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for stream, sink in ((process.stdout, out), (process.stderr, err)):
            if stream is not None:
                selector.register(stack.enter_context(stream), selectors.EVENT_READ, sink)
        while selector.get_map():
            if not timed_out and remaining() == 0:
                kill(process)
                timed_out, ends = True, None
            for key, _ in selector.select(remaining()):
                chunk = os.read(key.fd, _CHUNK)
                if chunk:
                    key.data.write(chunk)
                else:
                    selector.unregister(key.fileobj)
    try:
        process.wait(remaining())
    except subprocess.TimeoutExpired:  # the process closed its output, but did not end
        kill(process)
        process.wait()
        timed_out = True
    return timed_out
