"""A folder with a layout in it and an engine, Docker's or Podman's: where `run --runtime docker` is tried."""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

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
        """A run to its end."""
        argv = self.argv(*arguments)
        return subprocess.run(
            argv, input=stdin, env=dict(self.environ), cwd=self.folder, capture_output=True, check=False
        )

    def started(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A run whose command has said `ready`."""
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
        _, said = process.communicate()
        raise AssertionError(said)

    def docker(self, *arguments: str) -> str:
        """What Docker's own client answers."""
        argv = ["docker", *arguments]
        return subprocess.run(
            argv, env=dict(self.environ), capture_output=True, text=True, check=True
        ).stdout.strip()

    def left(self) -> tuple[str, str]:
        """Containers of the image, and volumes that no container has: other tests may use the engine too.

        Podman keeps the volumes of who was killed.
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
    """A folder that the engine sees under the same name: of the host, the tests' own engine sees /dev."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def line_of(stderr: bytes) -> list[str]:
    """The `docker run` line that was shown, or Podman's own."""
    (line,) = re.findall(r"^torchkiln: ((?:docker|podman --url \S+) run .*)$", stderr.decode(), re.MULTILINE)
    return shlex.split(line)
