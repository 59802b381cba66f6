"""Runs an untrusted program in a sandbox in which it can only compute.

The program has one read-only folder and three standard streams. It has no network, no other processes, no
files of the host, and none of the caller's environment variables. Its output is untrusted data, which the
caller checks.
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
# Imported as a module, so that Python caches its bytecode: a sandbox is created for each wheel.
_START = "import sys; sys.path.append(sys.argv[1]); import enter; enter.start(sys.argv[2:])"
_PROBE_S = 30.0
_LIMITS = {
    "AS": 384 << 20,  # bytes of memory: a source of 8 MB compiles in that
    "CPU": 600,  # seconds
    "FSIZE": 256 << 20,  # bytes of a file that it writes: `wheel/bytecode.py` reads no more
    "STACK": 8 << 20,
    "NOFILE": 64,
}


@functools.cache
def fault() -> str:
    """Why this host cannot create a sandbox; empty if it can. Tested once, without a program in it."""
    try:
        with tempfile.TemporaryDirectory(prefix="torchkiln-sandbox-") as folder:
            argv = command(Path(folder), {})
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return last[-200:] or f"exit {done.returncode}"
    return ""


def text_of(limits: Mapping[str, int]) -> str:
    """Resource *limits* as enter.py reads them; no core files, locked memory or message queues."""
    return ",".join((*(f"{name}={limit}" for name, limit in limits.items()), "CORE=0,MEMLOCK=0,MSGQUEUE=0"))


def command(root: Path | None, env: Mapping[str, str]) -> list[str]:
    """The command line of a sandbox, without the program: append its absolute path inside, and arguments.

    :param root: the folder that is / inside; None: the host's root, with only limits and the seccomp filter.
    """
    variables = [f"{name}={value}" for name, value in env.items()]
    folder = "" if root is None else str(root.absolute())
    arguments = (
        folder,
        text_of(_LIMITS),
        seccomp.program(seccomp.ALLOWED).hex(),
        str(len(variables)),
        *variables,
    )
    return [sys.executable, "-I", "-S", "-c", _START, str(_ENTER.parent), *arguments]
