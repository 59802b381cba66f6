"""Count and interrupt file and socket operations of a build, with a library in LD_PRELOAD."""

from __future__ import annotations

import mmap
import shutil
import signal
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROLES = ("parent", "worker", "other")
OPS = ("write", "read", "rename", "link", "unlink", "sync")  # "read" reads from a socket
PHASES = ("before", "inside", "after")  # "inside" a write: after half of its bytes
_SLOTS = len(ROLES) * len(OPS)
_SHARED = struct.Struct(f"=2q{3 * _SLOTS}q")
Counts = dict[str, int]


def compiler() -> str | None:
    """The path of a C compiler, or None."""
    return shutil.which("cc") or shutil.which("gcc")


def compile_tracer(folder: Path) -> Path:
    """Compile the library in *folder*."""
    library = folder / "tracer.so"
    source = Path(__file__).with_name("tracer.c")
    command = [
        str(compiler()),
        "-shared",
        "-fPIC",
        "-O1",
        "-o",
        str(library),
        str(source),
        "-ldl",
        "-lpthread",
    ]
    subprocess.run(command, check=True, capture_output=True)
    return library


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The signal that is sent at the *count*-th *op* of all processes of *role*.

    `target` names who gets the signal: "self" the process of the operation, "root" the started process,
    "group" all processes.
    """

    role: str
    op: str
    count: int
    phase: str
    signal: signal.Signals
    target: str

    def text(self) -> str:
        """The plan in the library's format."""
        numbers = (ROLES.index(self.role), OPS.index(self.op), self.count, PHASES.index(self.phase))
        return f"{' '.join(map(str, numbers))} {int(self.signal)} {self.target}"


class Shared:
    """The counters of one run, in shared memory: the file *path*, which all processes of the run map."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(_SHARED.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SHARED.size)

    def close(self) -> None:
        """Release the memory."""
        self._map.close()

    @property
    def root(self) -> int:
        """The process id of the build; 0 until it has started."""
        return int(self._numbers()[0])

    @property
    def fired(self) -> bool:
        """Whether the planned event occurred."""
        return bool(self._numbers()[1])

    def totals(self) -> dict[tuple[str, str], int]:
        """The number of operations started, by role."""
        return self._table(0)

    def flying(self) -> Counts:
        """The operations in progress, by name: at the planned event if it has occurred, otherwise now."""
        if self.fired:
            return _summed(self._table(2))
        begun, ended = self._table(0), self._table(1)
        return _summed({key: begun[key] - ended[key] for key in begun})

    def _numbers(self) -> tuple[int, ...]:
        return _SHARED.unpack(self._map[:])

    def _table(self, which: int) -> dict[tuple[str, str], int]:
        numbers = iter(self._numbers()[2 + which * _SLOTS :])
        return {(role, op): next(numbers) for role in ROLES for op in OPS}


def _summed(table: dict[tuple[str, str], int]) -> Counts:
    flying = {op: sum(table[role, op] for role in ("parent", "worker")) for op in OPS}
    return {op: count for op, count in flying.items() if count > 0}
