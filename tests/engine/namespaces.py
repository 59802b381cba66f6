"""A daemon of a Debian root in mount, pid and cgroup namespaces of its own: started, and taken down whole."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_PATIENCE = 300.0  # seconds until the kernel has ended all processes
_LOOK = 0.2


def start(root: Path, place: Path, daemon: Sequence[str]) -> subprocess.Popen[bytes]:
    """*daemon* in *root*, with *place* as its /srv (see `inside.py`); what it says goes to *place*/log."""
    flags = ["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        flags.append("--cgroup")
    inside = Path(__file__).with_name("inside.py")
    argv = ["setpriv", "--pdeathsig", "KILL", "unshare", *flags, sys.executable, "-I", str(inside)]
    argv += [str(root), str(place), *daemon]
    with (place / "log").open("wb") as log:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def stop(daemon: subprocess.Popen[bytes], cgroup: str) -> None:
    """Kill the namespaces' first process, and with it all containers, which are in *cgroup*."""
    daemon.kill()  # unshare --kill-child
    daemon.wait()
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end and not _gone(cgroup):
        time.sleep(_LOOK)


def _gone(cgroup: str) -> bool:
    """Whether the folders that containers leave could be removed."""
    left = [found for found in Path("/sys/fs/cgroup").glob(f"**/{cgroup}") if found.is_dir()]
    for cgroups in left:
        folders = [folder for folder in cgroups.rglob("*") if folder.is_dir()]
        for folder in (*sorted(folders, key=lambda found: -len(found.parts)), cgroups):
            with suppress(OSError):
                folder.rmdir()
    return not any(found.exists() for found in left)
