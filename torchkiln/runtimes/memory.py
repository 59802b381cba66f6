"""What the kernel did for want of memory: the one who was killed cannot tell."""

from __future__ import annotations

from pathlib import Path


def killed_for_memory(vmstat: Path = Path("/proc/vmstat")) -> int:
    """How many processes this kernel has killed for want of memory since its start, in whatever cgroup.

    0 where it does not say (`oom_kill` is there since Linux 4.13).
    """
    try:
        lines = vmstat.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
