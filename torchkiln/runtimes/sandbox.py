"""A program that is not trusted → the command that runs it where it can only compute.

It sees one folder, read-only, and its three open streams; no network, no other process, no file of the host,
no variable of the caller's. What it writes to its output is data, which the caller judges.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from torchkiln.runtimes import seccomp

_ENTER = Path(__file__).with_name("enter.py")
# As a module, whose byte-code Python keeps: a sandbox is made for each wheel.
_START = "import sys; sys.path.append(sys.argv[1]); import enter; enter.start(sys.argv[2:])"
_PROBE_S = 30.0
_LIMITS = {
    "AS": 384 << 20,  # bytes of memory: a source of 8 MB compiles in that
    "CPU": 600,  # seconds
    "FSIZE": 256 << 20,  # bytes of any file that it has open: `wheel/bytecode.py` reads no more
    "STACK": 8 << 20,
    "NOFILE": 64,
    "CORE": 0,
    "MEMLOCK": 0,
    "MSGQUEUE": 0,
}


@functools.cache
def fault() -> str:
    """Why this host can make no sandbox; empty where it can. Tried once, with no program in it."""
    try:
        with tempfile.TemporaryDirectory(prefix="torchkiln-sandbox-") as folder:
            done = subprocess.run(
                command(Path(folder), {}),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PROBE_S,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return last[-200:] or f"exit {done.returncode}"
    return ""


def command(root: Path | None, env: Mapping[str, str]) -> list[str]:
    """What starts a program in a sandbox: to be followed by its absolute path inside, and its arguments.

    :param root: the folder that it sees as /; None: the host's own root, with limits and filter alone.
    """
    limits = ",".join(f"{name}={most}" for name, most in _LIMITS.items())
    variables = [f"{name}={value}" for name, value in env.items()]
    where = "" if root is None else str(root.absolute())
    given = (where, limits, seccomp.program().hex(), str(len(variables)), *variables)
    return [sys.executable, "-I", "-S", "-c", _START, str(_ENTER.parent), *given]
