"""A folder with a layout, and a Docker or Podman engine, for tests of `run --runtime docker`."""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import forked
from tests.programs import run_program
from tests.roots import tiny_layout
from torchkiln.util.places import ROOT

TAG = "2.7-run-test"
NAME = f"pytorch-cuda:{TAG}"
CONFIG: dict[str, object] = {
    "Env": ["PATH=/bin", "FROM=config"],
    "Entrypoint": ["/bin/env", "ENTRY=1"],
    "Cmd": ["sh", "-c", "echo cmd $ENTRY"],
    "WorkingDir": "/workspace",
    "ExposedPorts": {"22/tcp": {}, "8888/tcp": {}},
    "Volumes": {"/workspace": {}},
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """A folder with a layout in it, and an engine."""

    folder: Path
    output: Path
    environ: Mapping[str, str]
    kind: str

    def argv(self, *arguments: str) -> list[str]:
        """The command line of a run."""
        program = [str(ROOT / ".venv/bin/python"), str(ROOT / "build.py"), "run", "--runtime", "docker"]
        return [*program, "--output", str(self.output), *arguments]

    def run(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run `torchkiln run` with *arguments*; returns when it has exited."""
        words = self.argv(*arguments)[2:]
        return forked.run_bytes(words, stdin=stdin, env=self.environ, cwd=self.folder)

    def started(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a run; returns when its command has printed `ready`."""
        process = subprocess.Popen(
            self.argv(*arguments),
            env=dict(self.environ),
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout
        if process.stdout.readline() == b"ready\n":
            return process
        _, stderr = process.communicate()
        raise AssertionError(stderr)

    def docker(self, *arguments: str) -> str:
        """The output of Docker's client."""
        argv = ["docker", *arguments]
        return run_program(argv, env=dict(self.environ), check=True).stdout.strip()

    def leftovers(self) -> tuple[str, str]:
        """Containers of the image, and volumes without a container; other tests may also use the engine.

        Podman keeps the volumes of a killed run.
        """
        containers = self.docker("ps", "--all", "--quiet", "--filter", f"ancestor={NAME}")
        if self.kind == "podman":
            return containers, ""
        return containers, self.docker("volume", "ls", "--quiet", "--filter", "dangling=true")


@pytest.fixture(scope="module", params=["docker", "podman"])
def place(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Place:
    folder = tmp_path_factory.mktemp("run")
    layout = tiny_layout(folder, CONFIG, TAG)
    engine = request.getfixturevalue("engine" if request.param == "docker" else "podman")
    environ = {**engine, "TORCHKILN_CACHE": str(folder / "cache")}
    return Place(folder=folder, output=layout, environ=environ, kind=request.param)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder in /dev/shm. It has the same path for the engine, which sees the host's /dev."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def line_of(stderr: bytes) -> list[str]:
    """The words of the line with `docker run` or `podman run` in *stderr*."""
    (line,) = re.findall(r"^torchkiln: ((?:docker|podman --url \S+) run .*)$", stderr.decode(), re.MULTILINE)
    return shlex.split(line)
