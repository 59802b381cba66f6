"""Runs an untrusted command that builds something in an unpacked image, in a sandbox without network.

`enclosed.py` describes what the command can do. This module limits its time, its memory, and its output,
which is untrusted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from torchkiln.errors import ToolMissing
from torchkiln.runtimes import seccomp
from torchkiln.runtimes.capture import Tail, receive
from torchkiln.runtimes.rootfs import using
from torchkiln.util.scratch import scratch

_ENCLOSED = Path(__file__).with_name("enclosed.py")
_START = "import sys; sys.path.append(sys.argv[1]); import enclosed; enclosed.main()"
_POLL = 0.1  # seconds
_NOT_STARTED = 125


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The resources that a command may use."""

    seconds: float = 900.0
    memory: int = 4 << 30  # bytes of memory of all its processes together
    space: int = 2 << 30  # bytes of the files that it writes, which are in memory, too
    output: int = 512 << 20  # bytes on its stdout


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A command in the unpacked image `root`; `binds` are (folder of the host, path in the image)."""

    root: Path
    argv: tuple[str, ...]  # the program by its absolute path
    env: Mapping[str, str]  # the whole environment
    binds: tuple[tuple[Path, str], ...] = ()
    workdir: str = "/tmp/build"
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a command ended. `exceeded`: the limit because of which it was stopped; empty: none."""

    code: int
    output: bytes
    log: str  # the end of its stderr, at most 1 MiB
    exceeded: str = ""


def run_enclosed(job: Job) -> Ended:
    """Run *job*.

    :raises ToolMissing: this host cannot create the sandbox.
    """
    limits = job.limits
    with using(job.root), scratch("workshop") as folder:
        spec = {
            "root": str(job.root.absolute()),
            "argv": list(job.argv),
            "env": dict(job.env),
            "binds": [(str(source.absolute()), target) for source, target in job.binds],
            "workdir": job.workdir,
            "scratch": str(folder),
            "space": limits.space,
            "limits": _resource_limits(limits),
            "filter": seccomp.builder_program().hex(),
        }
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _START, str(_ENCLOSED.parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={},
            start_new_session=True,
        )
        try:
            return _received(process, json.dumps(spec).encode(), limits)
        finally:
            _end(process)


def _resource_limits(limits: Limits) -> str:
    values = {
        "AS": limits.memory * 2,  # of each process: compilers reserve more than they use
        "CPU": int(limits.seconds),
        "FSIZE": limits.space,
        "NPROC": 4096,
        "NOFILE": 1024,
        "STACK": 64 << 20,
        "CORE": 0,
        "MEMLOCK": 0,
        "MSGQUEUE": 0,
    }
    return ",".join(f"{name}={value}" for name, value in values.items())


class _Output:
    """Keeps what is written to it, at most *limit* bytes; *kill* is called when there are more."""

    def __init__(self, limit: int, kill: Callable[[], None]) -> None:
        self.data, self.over = bytearray(), False
        self._limit, self._kill = limit, kill

    def write(self, data: bytes) -> int:
        if not self.over and len(self.data) + len(data) > self._limit:
            self.over = True
            self._kill()
        if not self.over:
            self.data += data
        return len(data)

    def flush(self) -> None:
        """Do nothing."""


def _received(process: subprocess.Popen[bytes], spec: bytes, limits: Limits) -> Ended:
    """Send *spec* to *process*, and receive its output until it ends, or exceeds a limit and is killed."""
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as sink:
        sink.write(spec)
    out, log = _Output(limits.output, lambda: _end(process)), Tail()
    too_large, done = threading.Event(), threading.Event()

    def watch() -> None:
        while not done.wait(_POLL):
            if sum(map(_resident, _tree(process.pid))) > limits.memory:
                too_large.set()
                _end(process)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        timed_out = receive(process, out, log, timeout_s=limits.seconds, kill=_end)
    finally:
        done.set()
        watcher.join()
    exceeded = f"{limits.seconds:.0f} seconds" if timed_out else ""
    exceeded = f"{limits.output >> 20} MiB of output" if out.over else exceeded
    exceeded = f"{limits.memory >> 20} MiB of memory" if too_large.is_set() else exceeded
    text = log.getvalue().decode("utf-8", "replace")
    if process.returncode == _NOT_STARTED and not exceeded:
        raise ToolMissing(
            f"the sandbox for builds cannot be created: {text.strip()[-300:]}",
            hint="run as root, or enable user namespaces (sysctl user.max_user_namespaces)",
        )
    return Ended(code=process.returncode, output=bytes(out.data), log=text, exceeded=exceeded)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill process 1 of the namespace, and with it all others in it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _tree(pid: int) -> Iterator[int]:
    """The process *pid* and its descendants, of any depth."""
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        yield one
        with suppress(OSError, ValueError):
            for path in Path(f"/proc/{one}/task").iterdir():
                waiting += map(int, (path / "children").read_text().split())


def _resident(pid: int) -> int:
    """The resident memory of the process *pid*, in bytes."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
