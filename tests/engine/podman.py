"""Podman as a service with Docker's API, with separate storage, runtime folder and socket."""

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

_TIMEOUT = 300  # seconds; the first start initialises the storage
# Low limits, because this host's root may be restricted by a sandbox. runc, because crun does not support the
# hybrid cgroups of older hosts.
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
    """The environment with which Docker's client reaches a separate podman, while the context lasts.

    :raises NoEngine: podman or runc is not installed, or its service does not start.
    """
    lacking = [name for name in ("podman", "runc") if not shutil.which(name)]
    if lacking or os.geteuid():
        raise NoEngine(
            f"podman's socket requires root, podman and runc; missing: {', '.join(lacking) or 'root'}"
        )
    with tempfile.TemporaryDirectory(prefix="pod") as short:  # podman allows at most 50 characters here
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
            # podman bind-mounts the folder onto itself; if that mount remains, the folder cannot be deleted.
            subprocess.run(["umount", "--lazy", f"{short}/root/overlay"], capture_output=True, check=False)


def _wait(folder: Path, service: subprocess.Popen[bytes]) -> None:
    """Wait until the socket accepts connections."""
    ends = time.monotonic() + _TIMEOUT
    while time.monotonic() < ends and service.poll() is None:
        with socket.socket(socket.AF_UNIX) as line:
            try:
                line.connect(str(folder / "sock"))
                line.settimeout(_TIMEOUT)
                line.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
                if line.recv(1):
                    return
            except OSError:
                time.sleep(0.2)
    raise NoEngine(f"podman's service did not start: {(folder / 'log').read_text(errors='replace')[-600:]}")
