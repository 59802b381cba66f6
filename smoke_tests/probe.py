"""Run a script of probes/ in a child process without pytest, and parse the JSON that it prints."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from smoke_tests.catalogue import driver_probe

SUITE = Path(__file__).parent
GRACE = 3.0  # seconds to wait after SIGKILL


def probe(
    name: str,
    *arguments: str,
    limit: float | None = None,
    flags: Sequence[str] = ("-I", "-B"),
    env: Mapping[str, str] | None = None,
) -> Any:
    """The output of probes/*name*.py, run by the image's interpreter with its own sys.path.

    :param limit: seconds; None: the check's own limit is enough.
    :param flags: options of the interpreter.
    :param env: its variables; None: those of this process.
    :raises AssertionError: the script failed, was killed or timed out; the message names a signal.
    """
    script = driver_probe(SUITE) if name == "driver" else SUITE / "probes" / f"{name}.py"
    command = [sys.executable, *flags, str(script), *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    try:
        stdout, stderr = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        # A process that is blocked in the kernel does not end.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=GRACE)
        raise AssertionError(f"probe {name} timed out after {limit:g} s") from None
    message = "\n".join(filter(None, (f"probe {name} {ending(process.returncode)}", tail(stderr))))
    assert process.returncode == 0, message
    return json.loads(stdout.splitlines()[-1])


def ending(code: int) -> str:
    """A description of an exit status; a negative one is the signal that killed the process."""
    if code >= 0:
        return f"ended with exit code {code}"
    import signal

    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def where(text: str, lines: int = 8) -> str:
    """Where a process was when it was killed: the first lines of faulthandler's traceback, or else the
    tail."""
    found = text.splitlines()
    start = next((at for at, line in enumerate(found) if line.startswith("Fatal Python error")), None)
    if start is None:
        return tail(text)
    return "\n".join([line for line in found[start:] if line][:lines])


def tail(text: str, lines: int = 15) -> str:
    """The last *lines* of *text*."""
    return "\n".join(text.strip().splitlines()[-lines:])
