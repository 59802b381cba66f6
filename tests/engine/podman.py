"""Podman behind the socket that answers as Docker's does: storage, runtime and socket of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.engine.root import NoEngine

_PATIENCE = 300  # seconds; the first start lays the storage out
# No more than root of this host has, whom a sandbox may give little. And by runc, which takes
# the hybrid cgroups of older hosts; crun does not.
SETTINGS = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


@contextmanager
def podman_service() -> Iterator[Mapping[str, str]]:
    """What leads Docker's client to a podman of its own, while the context lasts.

    :raises NoEngine: podman or runc is not installed, or its service does not come up.
    """
    lacking = [name for name in ("podman", "runc") if not shutil.which(name)]
    if lacking or os.geteuid():
        raise NoEngine(
            f"podman's socket takes root, podman and runc; not here: {', '.join(lacking) or 'root'}"
        )
    with tempfile.TemporaryDirectory(prefix="pod") as short:  # podman takes at most 50 characters here
        folder = Path(short)
        (folder / "conf").write_text(SETTINGS)
        environ = {**os.environ, "CONTAINERS_CONF": str(folder / "conf"), "TMPDIR": short}
        place = ["podman", "--root", f"{short}/root", "--runroot", f"{short}/run"]
        with (folder / "log").open("wb") as log:
            service = subprocess.Popen(
                [*place, "system", "service", "--time=0", f"unix://{short}/sock"],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            _wait(folder, service)
            yield {"DOCKER_HOST": f"unix://{short}/sock"}
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait()
            subprocess.run(
                [*place, "system", "reset", "--force"], env=environ, capture_output=True, check=False
            )


def _wait(folder: Path, service: subprocess.Popen[bytes]) -> None:
    """Until the socket is answered at."""
    ends = time.monotonic() + _PATIENCE
    while time.monotonic() < ends and service.poll() is None:
        with socket.socket(socket.AF_UNIX) as line:
            try:
                line.connect(str(folder / "sock"))
                line.settimeout(_PATIENCE)
                line.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
                if line.recv(1):
                    return
            except OSError:
                time.sleep(0.2)
    raise NoEngine(f"podman's service did not come up: {(folder / 'log').read_text(errors='replace')[-600:]}")
