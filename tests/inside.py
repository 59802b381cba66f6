"""Test data for the package inside images: an image, a driver, a machine, mounts, and the doctor's paths."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from torchkiln.util.places import ROOTFS
from workplace import checks
from workplace.driver import Driver, Gpu
from workplace.image import Image, load
from workplace.machine import Machine

PACKAGE = ROOTFS / "opt/torchkiln/workplace"
HOPPER = Gpu(name="NVIDIA H100", capability=(9, 0), memory=80 << 30)
_SSHD = Path("/usr/sbin/sshd")
# tools/system-packages does not install openssh-server, because the package starts a service on the host.
needs_sshd = pytest.mark.skipif(
    not _SSHD.exists(), reason="sshd is not installed: apt-get install openssh-server"
)


def image(**more: Any) -> Image:
    """An image with torch 2.7.1 for CUDA 12.1, with the changes *more*."""
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
        wheel_archs=("sm_80", "sm_90"),
        wheels=(("torch", "2.7.1"), ("nvidia-nccl-cu12", "2.26.2"), ("numpy", "2.3.5")),
    )
    return replace(sound, **more)


def driver(**more: Any) -> Driver:
    """A recent driver with one GPU, with the changes *more*."""
    sound = Driver(
        version="580.159.04", cuda="13.0", gpus=(HOPPER,), links=(), passed=True, fault="", remedy=""
    )
    return replace(sound, **more)


def machine(**more: Any) -> Machine:
    """A large machine, with the changes *more*."""
    sound = Machine(
        shm=8 << 30, memory=64 << 30, limited=False, cores=8.0, writable=("/workspace", "/tmp"), closed=()
    )
    return replace(sound, **more)


def python(code: str, *, before: Sequence[str] = ()) -> str:
    """The output of *code* in a Python that can import the package. *before* starts the command line."""
    found = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n"
    argv = [*before, sys.executable, "-IBc", found + code]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def sshd(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run the real sshd until it ends."""
    before = run() if os.geteuid() == 0 else []
    return subprocess.run([*before, str(_SSHD), *arguments], capture_output=True, check=False)


@contextmanager
def says(greeting: bytes | None) -> Iterator[int]:
    """A server that sends *greeting* and disconnects; with None, it only reads. Yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(300)
        thread = threading.Thread(target=_greet, args=(server, greeting))
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def _greet(server: socket.socket, greeting: bytes | None) -> None:
    """Serve one client."""
    connection, _ = server.accept()
    with connection:
        if greeting is None:
            connection.recv(1 << 16)
            connection.recv(1)  # until the client disconnects
        else:
            connection.sendall(greeting)


# Mounts a new /dev with few devices, as `docker run` does.
_DEV = """
mkdir "$1"; mount --rbind /dev "$1"; mount -t tmpfs dev /dev; mkdir /dev/shm
for name in null zero random urandom; do touch /dev/$name; mount --bind "$1/$name" /dev/$name; done
for name in $2; do touch "/dev/$name"; done
mount -t tmpfs -o "size=$3" shm /dev/shm
shift 3; exec "$@"
"""
_RUN = 'mount -t tmpfs run /run; mkdir -m 0755 /run/sshd; exec "$@"'
_UNSHARE = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]


def dev(tmp_path: Path, *nodes: str, shm: str = "1g") -> list[str]:
    """The start of a command line: it mounts a new /dev with *nodes* and a /dev/shm of size *shm*."""
    words = [*_UNSHARE, "sh", "-ec", _DEV, "sh", str(tmp_path / "dev"), " ".join(nodes), shm]
    _try(words)
    (tmp_path / "dev").rmdir()
    return words


def run() -> list[str]:
    """The start of a command line: it mounts a new /run that only has the folder sshd, as sshd requires."""
    words = [*_UNSHARE, "sh", "-ec", _RUN, "sh"]
    _try(words)
    return words


def _try(words: Sequence[str]) -> None:
    done = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")


class Place:
    """A folder with all files that the doctor checks; they are those of a valid image."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "venv/python3.11/site-packages"
        self.facts = folder / "image.json"
        self.run = folder / "run"
        self.system = folder / "system"
        (self.site / "nvidia/cudnn/lib").mkdir(parents=True)
        (self.site / "nvidia/cudnn/lib/libcudnn.so.9").write_text("")
        for name, version in (("torch", "2.7.1"), ("nvidia_nccl_cu12", "2.26.2")):
            self.install(name, version)
        wheels = [{"name": name, "version": version} for name, version in image().wheels]
        self.facts.write_text(json.dumps(asdict(image()) | {"wheels": wheels}))
        self.run.mkdir()
        (self.system / "sys/class/net").mkdir(parents=True)
        for card in ("lo", "eth0"):
            (self.system / "sys/class/net" / card).write_text("")

    def install(self, name: str, version: str) -> None:
        """Write the metadata of a package, as pip does."""
        folder = self.site / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def program(self, name: str, script: str) -> None:
        """Write a shell script into the folder `bin`, which is the PATH."""
        (self.folder / "bin").mkdir(exist_ok=True)
        place = self.folder / "bin" / name
        place.write_text(f"#!/bin/sh\n{script}\n")
        place.chmod(0o755)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    found = Place(tmp_path)

    def path(*parts: str | Path) -> Path:
        """Like `Path(*parts)`, but a path in /dev or /sys is below the folder `system`."""
        absolute = Path(*parts)
        return found.system / absolute.relative_to("/") if absolute.parts[1] in ("dev", "sys") else absolute

    monkeypatch.setattr(checks, "SITES", found.site.parents[1])
    monkeypatch.setattr(checks, "FACTS", found.facts)
    monkeypatch.setattr(checks, "Path", path)
    monkeypatch.setattr(checks, "runtime_folder", lambda: found.run)
    monkeypatch.setattr(load, "__defaults__", (found.facts,))
    return found
