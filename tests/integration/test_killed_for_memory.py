"""The kernel's own count of those that it killed for want of memory, with one that it really kills."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchkiln.runtimes.driver import killed_for_memory

_LIMIT = 32 << 20
# Both generations of cgroups: the folder, and the file that limits memory.
_KINDS = {"/sys/fs/cgroup/memory": "memory.limit_in_bytes", "/sys/fs/cgroup": "memory.max"}


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """One whose processes may have 32 MiB."""
    for parent, limit in _KINDS.items():
        place = Path(parent, f"torchkiln-test-{os.getpid()}")
        try:
            place.mkdir()
            (place / limit).write_text(str(_LIMIT))
        except OSError:
            if place.is_dir():
                place.rmdir()
            continue
        yield place
        place.rmdir()
        return
    pytest.skip("no memory cgroup that we may make here: takes root and /sys/fs/cgroup writable")


def test_a_kill_is_counted(cgroup: Path) -> None:
    before = killed_for_memory()
    code = f"open({str(cgroup / 'cgroup.procs')!r}, 'w').write('0'); bytearray({8 * _LIMIT})"
    done = subprocess.run([sys.executable, "-c", code], check=False)
    end = time.monotonic() + 300
    while killed_for_memory() == before and time.monotonic() < end:
        time.sleep(0.05)

    assert done.returncode == -9
    assert killed_for_memory() == before + 1


def test_a_kernel_that_does_not_say(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("nr_free_pages 7\noom_killer 9\n")

    assert killed_for_memory(tmp_path / "vmstat") == killed_for_memory(tmp_path / "nowhere") == 0
