"""A script of probes/ -> the JSON it prints, from a child process that knows nothing of pytest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PROBES = Path(__file__).parent / "probes"


def probe(name: str, *arguments: str) -> Any:
    """What probes/*name*.py prints, run by the image's own interpreter with its own sys.path.

    :raises AssertionError: it died or failed; a signal is named.
    """
    command = [sys.executable, "-I", "-B", str(PROBES / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, f"probe {name} {ending(done.returncode)}:\n{tail(done.stderr)}"
    return json.loads(done.stdout.splitlines()[-1])


def ending(code: int) -> str:
    """An exit status in words: a negative one is the signal that killed the process."""
    if code >= 0:
        return f"ended with exit code {code}"
    import signal

    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def where(text: str, lines: int = 8) -> str:
    """Where a process was when it was killed: faulthandler's first lines are the innermost; else the tail."""
    found = text.splitlines()
    start = next((at for at, line in enumerate(found) if line.startswith("Fatal Python error")), None)
    if start is None:
        return tail(text)
    return "\n".join([line for line in found[start:] if line][:lines])


def tail(text: str, lines: int = 15) -> str:
    """The last *lines* of *text*."""
    return "\n".join(text.strip().splitlines()[-lines:])
