"""What the package inside images is given in tests: an image, a driver and a machine with nothing wrong."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.mounts import run
from torchkiln.util.places import ROOTFS
from workplace.driver import Driver, Gpu
from workplace.image import Image
from workplace.machine import Machine

PACKAGE = ROOTFS / "opt/torchkiln/workplace"
HOPPER = Gpu(name="NVIDIA H100", capability=(9, 0), memory=80 << 30)
_SSHD = Path("/usr/sbin/sshd")
# Not among tools/system-packages: it would start a service on the host.
needs_sshd = pytest.mark.skipif(
    not _SSHD.exists(), reason="the judge of what we write for sshd: apt-get install openssh-server"
)


def image(**more: Any) -> Image:
    """torch 2.7.1 for CUDA 12.1, but for *more*."""
    sound = Image(
        tag="2.7.1-cuda12.1-cudnn9-runtime",
        torch="2.7.1+cu126",
        cuda="12.1",
        wheel_cuda="12.6",
        cudnn="9.5.1.17",
        nccl="2.26.2",
        python="3.11.2",
        min_driver="525.60.13",
        full_driver="560.35.05",
        archs=("sm_80", "sm_90"),
        wheels=(("torch", "2.7.1"), ("nvidia-nccl-cu12", "2.26.2"), ("numpy", "2.3.5")),
    )
    return replace(sound, **more)


def driver(**more: Any) -> Driver:
    """A new one with one GPU, but for *more*."""
    sound = Driver(
        version="580.159.04", cuda="13.0", gpus=(HOPPER,), links=(), passed=True, fault="", remedy=""
    )
    return replace(sound, **more)


def machine(**more: Any) -> Machine:
    """A large one, but for *more*."""
    sound = Machine(
        shm=8 << 30, memory=64 << 30, limited=False, cores=8.0, writable=("/workspace", "/tmp"), closed=()
    )
    return replace(sound, **more)


def python(code: str, *, before: Sequence[str] = ()) -> str:
    """What *code* prints, in a process that finds the package; *before* stands before its command."""
    found = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n"
    argv = [*before, sys.executable, "-IBc", found + code]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def sshd(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """The real one, to its end."""
    before = run() if os.geteuid() == 0 else []
    return subprocess.run([*before, str(_SSHD), *arguments], capture_output=True, check=False)


@contextmanager
def says(greeting: bytes | None) -> Iterator[int]:
    """The port of one that greets whoever comes, and hangs up; None: it keeps silent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(300)
        thread = threading.Thread(target=_greet, args=(server, greeting))
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def _greet(server: socket.socket, greeting: bytes | None) -> None:
    """One guest."""
    connection, _ = server.accept()
    with connection:
        if greeting is None:
            connection.recv(1 << 16)
            connection.recv(1)  # until the guest has gone
        else:
            connection.sendall(greeting)
