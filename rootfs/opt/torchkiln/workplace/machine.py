"""Reads what this container has: memory, /dev/shm, cores, writable folders."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

SMALL_SHM = 64 << 20  # bytes: Docker's default, too small for DataLoader workers


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Sizes in bytes. `writable`, `closed`: the usual folders that this user can, and cannot, write to."""

    shm: int  # 0: missing or not writable
    memory: int  # the container's limit, else the host's memory
    limited: bool
    cores: float
    writable: tuple[str, ...]
    closed: tuple[str, ...]


def look() -> Machine:
    """Read the current values."""
    memory, limited = _memory(Path("/sys/fs/cgroup"))
    here = [os.getcwd(), os.environ.get("HOME", "/"), "/tmp"]
    folders = list(dict.fromkeys(here))
    may = {folder: writable(folder) for folder in folders}
    return Machine(
        shm=_shm(Path("/dev/shm")),
        memory=memory,
        limited=limited,
        cores=_cores(Path("/sys/fs/cgroup")),
        writable=tuple(folder for folder in folders if may[folder]),
        closed=tuple(folder for folder in folders if not may[folder]),
    )


def writable(folder: str) -> bool:
    """Whether a file can be created in *folder*; access(2) is wrong for root on a read-only file system."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def size(count: int) -> str:
    """`"64 MiB"`, `"7.8 GiB"`."""
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count >> 20} MiB"


def _shm(folder: Path) -> int:
    if not writable(str(folder)):
        return 0
    status = os.statvfs(folder)
    return status.f_blocks * status.f_frsize


def _memory(cgroup: Path) -> tuple[int, bool]:
    has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # cgroup v2, v1
        try:
            limit = int((cgroup / name).read_text())
        except (OSError, ValueError):  # "max": no limit
            continue
        if limit < has:
            return limit, True
    return has, False


def _cores(cgroup: Path) -> float:
    usable = float(len(os.sched_getaffinity(0)))
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return min(usable, int(quota) / int(period))
    except (OSError, ValueError):
        return usable
