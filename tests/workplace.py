"""Containers of an image for interactive work: the real base, rootfs/, JupyterLab and numpy, but no torch."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Timer

import pytest

from tests.once import once
from torchkiln.locks.lock import load_locked, save
from torchkiln.util.places import ROOT

TAG = "2.6.0-cuda12.1-cudnn9-runtime"  # not 2.7.1, which tests/docker loads into the same engine
IMAGE = f"pytorch-cuda:{TAG}"
HEALTHCHECK = "/opt/torchkiln/healthcheck"
_LEFT_OUT = re.compile("nvidia-.*|torch|torchaudio|torchvision|triton|sympy|networkx|mpmath")
_TIMEOUT, _LOOK = 300.0, 0.2  # seconds to wait for a line in a container's log


@dataclass(frozen=True, kw_only=True)
class Container:
    """A container that runs or has ended."""

    name: str
    environ: Mapping[str, str]

    def docker(self, *arguments: str, check: bool = True, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run Docker's client with the input *text*."""
        argv = ["docker", *arguments]
        return subprocess.run(
            argv, env=dict(self.environ), input=text, capture_output=True, text=True, check=check
        )

    def inside(self, *command: str) -> str:
        """The output of *command* in the container."""
        done = self.docker("exec", self.name, *command, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def port(self, inside: int) -> int:
        """The published port on this machine."""
        return int(self.docker("port", self.name, str(inside)).stdout.splitlines()[0].rpartition(":")[2])

    def logs(self) -> str:
        """The container's log, both streams."""
        done = self.docker("logs", self.name)
        return done.stdout + done.stderr

    def says(self, pattern: str) -> re.Match[str]:
        """Wait until the container's log has *pattern*; returns the match.

        It runs `docker logs --follow` once, because repeated calls cost as much as the start of JupyterLab.
        """
        output = ""
        argv = ["docker", "logs", "--follow", self.name]
        with subprocess.Popen(
            argv, env=dict(self.environ), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as log:
            timer = Timer(_TIMEOUT, log.kill)
            timer.start()
            try:
                for line in log.stdout or ():
                    output += line
                    if found := re.search(pattern, output):
                        return found
            finally:
                timer.cancel()
                log.kill()
        raise AssertionError(f"no {pattern!r} before it ended, or in {_TIMEOUT} s: {output}")

    def serves(self, pattern: str = "is running at") -> None:
        """Wait until the container's log has *pattern* and the image's health check passes.

        Services write to the log before they listen; until they listen, Docker's proxy drops connections.
        """
        self.says(pattern)
        end = time.monotonic() + _TIMEOUT
        while (done := self.docker("exec", self.name, HEALTHCHECK, check=False)).returncode:
            assert time.monotonic() < end, done.stderr
            time.sleep(_LOOK)

    def code(self) -> int:
        """Wait until the container ends; returns the exit code."""
        return int(self.docker("wait", self.name).stdout)


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """The image, loaded into an engine."""

    environ: Mapping[str, str]
    image: str = IMAGE
    folder: Path = Path()  # contains the lock in images/, and the layout dist/

    @contextmanager
    def started(self, *options: str, command: Sequence[str] = ()) -> Iterator[Container]:
        """Run `docker run -d OPTIONS IMAGE COMMAND`; the container is removed afterwards."""
        argv = ["docker", "run", "--detach", *options, self.image, *command]
        done = subprocess.run(argv, env=dict(self.environ), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        container = Container(name=done.stdout.strip(), environ=self.environ)
        try:
            yield container
        finally:
            container.docker("rm", "--force", "--volumes", container.name)

    def run(self, *options: str, command: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Run `docker run --rm OPTIONS IMAGE COMMAND`; returns the result."""
        argv = ["docker", "run", "--rm", *options, self.image, *command]
        return subprocess.run(argv, env=dict(self.environ), capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory, engine: Mapping[str, str]) -> Workplace:
    """The image, loaded into the engine once for all processes of a test run."""
    folder = once(tmp_path_factory, "workplace", lambda folder: load(folder, engine))
    return Workplace(environ=engine, folder=folder)


def load(folder: Path, engine: Mapping[str, str]) -> None:
    """Build the image with the user's cache, and load it; this needs 105 MB of wheels, and the base."""
    locked = load_locked(ROOT / "images", TAG)
    wheels = tuple(wheel for wheel in locked.wheels if not _LEFT_OUT.fullmatch(wheel.name))
    save(folder / "images", replace(locked, wheels=wheels, layers=()))
    cell = ("--torch", "2.6", "--cuda", "12.1", "--images", str(folder / "images"))
    made = ("--output", str(folder / "dist"), "--load")
    argv = [str(ROOT / ".venv/bin/python"), str(ROOT / "build.py"), "build", *cell, *made]
    done = subprocess.run(argv, env=dict(engine), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def key(folder: Path) -> tuple[Path, str]:
    """A new SSH key: the file of the private key, and the line of the public key."""
    place = folder / f"key-{os.urandom(4).hex()}"
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(place)]
    subprocess.run(argv, check=True, capture_output=True)
    return place, place.with_suffix(".pub").read_text().strip()
