"""Runs an untrusted command that builds something in an unpacked image, in a sandbox without network.

The sandbox is that of the rootfs runtime. This module limits the command's time, its memory, and its output,
which is untrusted.
"""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torchkiln.runtimes.capture import Tail, receive
from torchkiln.runtimes.command import Exited, Program
from torchkiln.runtimes.memory_group import MemoryGroup, memory_group
from torchkiln.runtimes.rootfs import RootfsRuntime, terminate

_POLL = 0.1  # seconds
_FIELD = re.compile(r"^(\w+):\s+(\d+)", re.MULTILINE)
# Bytes for each unit of a field of /proc/PID/status. The two ends of a pipe that is one of many hold 8 KiB.
_HELD = {"VmRSS": 1024, "VmSwap": 1024, "VmPTE": 1024, "FDSize": 4096}
_SOCKETS = re.compile(r"sockets: used (\d+)")
_BUFFER = Path("/proc/sys/net/core/wmem_default")  # a socket holds less than twice as many bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The resources that a command may use."""

    seconds: float = 900.0
    memory: int = 4 << 30  # bytes of memory of all its processes together
    space: int = 2 << 30  # bytes of the files that it writes, which are in memory, too
    output: int = 512 << 20  # bytes on its stdout

    @property
    def of_each_process(self) -> dict[str, int]:
        """The resource limits of each process, by name."""
        return {
            "AS": self.memory * 2,  # compilers reserve more than they use
            "CPU": int(self.seconds),
            "FSIZE": self.space,
            "NPROC": 4096,
            "NOFILE": 1024,
            "STACK": 64 << 20,
            "SIGPENDING": 1024,
        }


def run_enclosed(root: Path, program: Program, limits: Limits) -> Exited:
    """Run *program* as the user nobody in the unpacked image *root*, and keep the end of its stderr.

    :raises ToolMissing: this host cannot create the sandbox.
    :raises ValueError: it exceeded *limits*, and was stopped.
    """
    with memory_group(limits.memory + limits.space) as group:
        runtime = RootfsRuntime(
            shm_size=limits.space, hostname="sandbox", confined=limits.of_each_process, join=group.add
        )
        with runtime.started(root, program) as process:
            return _received(process, limits, group)


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


def _received(process: subprocess.Popen[bytes], limits: Limits, group: MemoryGroup) -> Exited:
    """The output of *process* until it ends, or exceeds a limit and is killed."""
    out, log = _Output(limits.output, lambda: terminate(process)), Tail()
    too_large, done = threading.Event(), threading.Event()

    def watch() -> None:
        while not done.wait(_POLL):
            if group.exceeded() or _held(list(_tree(process.pid))) > limits.memory:
                too_large.set()
                terminate(process)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        timed_out = receive(process, out, log, timeout_s=limits.seconds, kill=terminate)
    finally:
        done.set()
        watcher.join()
    for is_exceeded, limit in (
        (too_large.is_set() or group.exceeded(), f"{limits.memory >> 20} MiB of memory"),
        (out.over, f"{limits.output >> 20} MiB of output"),
        (timed_out, f"{limits.seconds:.0f} seconds"),
    ):
        if is_exceeded:
            raise ValueError(f"its build was stopped: it used more than {limit}")
    return Exited(code=process.returncode, stdout=bytes(out.data), stderr=log.getvalue(), timed_out=timed_out)


def _tree(pid: int) -> Iterator[int]:
    """The process *pid* and its descendants, of any depth."""
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        yield one
        with suppress(OSError, ValueError):
            for path in Path(f"/proc/{one}/task").iterdir():
                waiting += map(int, (path / "children").read_text().split())


def _held(processes: list[int]) -> int:
    """The bytes of memory that *processes* hold, with page tables, pipes, and buffers of sockets.

    All but the first are in the sandbox, in its network namespace.
    """
    held = 0
    for pid in processes:
        with suppress(OSError):
            fields = dict(_FIELD.findall(Path(f"/proc/{pid}/status").read_text()))
            held += sum(int(fields.get(name, 0)) * size for name, size in _HELD.items())
    with suppress(OSError, IndexError):
        sockets = _SOCKETS.findall(Path(f"/proc/{processes[1]}/net/sockstat").read_text())
        held += int(sockets[0]) * 2 * int(_BUFFER.read_text())
    return held
