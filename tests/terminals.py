"""Runs commands on a terminal of a given width (a pty), and gives the content of its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests import forked
from torchkiln.util.places import ROOT

_MODULE = str(ROOT / "torchkiln/__main__.py")  # sys.argv[0] of `python -m torchkiln`
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[()][A-Z0-9])")


@dataclass(frozen=True, kw_only=True, slots=True)
class Screen:
    """What a command wrote to its terminal, stdout and stderr together."""

    code: int
    raw: str
    width: int

    @property
    def escapes(self) -> list[str]:
        """The escape sequences in the output."""
        return _ESCAPE.findall(self.raw)

    @property
    def lines(self) -> list[str]:
        """The lines that the command wrote, without escape sequences."""
        return _ESCAPE.sub("", self.raw).replace("\r\n", "\n").split("\n")

    @property
    def rows(self) -> list[str]:
        """The rows of the screen: a line that is longer than the width continues in the next row."""
        return [
            line[at : at + self.width] for line in self.lines for at in range(0, len(line) or 1, self.width)
        ]


def on_terminal(
    *arguments: str, width: int, module: bool = True, env: Mapping[str, str] | None = None
) -> Screen:
    """Run torchkiln with *arguments* on a terminal that is *width* characters wide.

    :param module: whether *arguments* are for torchkiln; otherwise they are a Python program with arguments.
    :param env: variables in addition to those of this process. TERM, NO_COLOR and COLUMNS are not inherited.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    environ = {**inherited, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **(env or {})}
    output = bytearray()
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(_run_on, slave, arguments, environ, module=module)
        try:
            while piece := os.read(master, 1 << 16):
                output += piece
        except OSError:  # EIO: the command has closed the terminal
            pass
        finally:
            os.close(master)
    return Screen(code=ended.result(), raw=output.decode(), width=width)


def _run_on(slave: int, arguments: Sequence[str], environ: Mapping[str, str], *, module: bool) -> int:
    """Run the command on the terminal *slave*, and close it; returns the exit code."""
    try:
        if module:
            return forked.run_on((slave, slave, slave), arguments, env=environ, cwd=ROOT, program=_MODULE)
        argv = [sys.executable, "-c", *arguments]
        return subprocess.run(
            argv, cwd=ROOT, env=environ, stdin=slave, stdout=slave, stderr=slave, check=False
        ).returncode
    finally:
        os.close(slave)
