"""Limits the memory of a process and of all that it starts by a control group, if this user can make one.

Only the kernel counts all memory that processes hold, also in pipes, sockets and its own tables.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

_TRIES = 250
_KILLED = re.compile(r"^oom_kill [1-9]", re.MULTILINE)
# By the type of the file system: the controller, limits of memory and of swap, the count of killed processes.
_FILES = {
    "cgroup2": ("", "memory.max", "memory.swap.max", "memory.events"),
    "cgroup": ("memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryGroup:
    """A control group, by its file that counts killed processes; None: there is none, and no limit."""

    events: Path | None = None

    def add(self, pid: int) -> None:
        """Put the process *pid*, which has started no others yet, into the group."""
        with suppress(OSError):  # refused: the caller's own limits apply alone
            if self.events:
                self.events.with_name("cgroup.procs").write_text(str(pid))

    def exceeded(self) -> bool:
        """Whether the kernel has killed a process because the group had no memory left."""
        return bool(self.events and _KILLED.search(self.events.read_text()))


@contextmanager
def memory_group(limit: int, proc: Path = Path("/proc/self")) -> Iterator[MemoryGroup]:
    """A group whose processes have at most *limit* bytes of memory; all have ended when the context ends."""
    group = MemoryGroup()
    with suppress(OSError, ValueError):  # a kernel without control groups
        group = next(filter(None, (_made(*place, limit) for place in _places(proc))), group)
    try:
        yield group
    finally:
        for _ in range(_TRIES):
            if group.events is None or _removed(group.events.parent):
                break
            time.sleep(0.02)  # the kernel removes a process from its group after it has ended


def _places(proc: Path) -> Iterator[tuple[Path, str]]:
    """Folders in which this user may be able to make a group with a limit, and their file system."""
    lines = (line.split(":", 2) for line in (proc / "cgroup").read_text().splitlines())
    own = {name: path for _, names, path in lines for name in names.split(",")}
    for line in (proc / "mountinfo").read_text().splitlines():
        mount, _, system = line.partition(" - ")
        (root, point), (kind, _, options) = mount.split()[3:5], system.split(" ", 2)
        name = _FILES.get(kind, ("none",))[0]
        if name in {"", *options.split(",")} & own.keys() and own[name].startswith(root):
            below = own[name].removeprefix(root).strip("/")
            if kind == "cgroup2" and below:  # a group of version 2 with processes limits no groups below it
                yield Path(point, below).parent, kind
            yield Path(point, below), kind


def _made(above: Path, kind: str, limit: int) -> MemoryGroup | None:
    """A new group below *above*; None if this user cannot make it, or cannot limit its memory."""
    folder, (_, most, swapped, events) = above / f"torchkiln-{token_hex(8)}", _FILES[kind]
    try:
        folder.mkdir()
        (folder / most).write_text(str(limit))
    except OSError:
        _removed(folder)
        return None
    with suppress(OSError):  # a kernel that does not count swap
        (folder / swapped).write_text("0" if kind == "cgroup2" else str(limit))
    return MemoryGroup(events=folder / events)


def _removed(folder: Path) -> bool:
    with suppress(OSError):
        folder.rmdir()
    return not folder.exists()
