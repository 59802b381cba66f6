"""A dev container of `init --devcontainer`, opened by the CLI that VS Code uses, in a Docker engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.engine.place import shared
from tests.needs import nightly
from tests.node_tools import devcontainer_cli
from tests.programs import run_program
from tests.workplace import IMAGE, TAG, Workplace
from torchkiln.locks.file import lock_digest
from torchkiln.locks.lock import load_locked
from torchkiln.model.project import ProjectLock
from torchkiln.projects.file import save_project
from torchkiln.projects.freshness import inputs_digest
from torchkiln.projects.source import needs_of
from torchkiln.store.store import Store, cache_root

__all__ = ["shared"]

pytestmark = [pytest.mark.proof, nightly]

FILE = ".devcontainer/devcontainer.json"
_TIMEOUT = 900.0  # seconds to wait for a server that may not start


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A folder with a dev container, and the engine in which it is opened."""

    folder: Path
    workplace: Workplace

    def cli(self, command: str, *arguments: str) -> str:
        """Run a command of the CLI for the folder; returns its stdout."""
        argv = [*devcontainer_cli(), command, "--workspace-folder", str(self.folder), *arguments]
        environ = dict(self.workplace.environ)
        done = run_program(argv, env=environ, timeout=_TIMEOUT)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def kiln(self, *arguments: str) -> str:
        """Run a torchkiln command in the folder; returns its stdout."""
        done = forked.run(arguments, env=self.workplace.environ, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def up(self, *arguments: str) -> dict[str, Any]:
        """The result of `devcontainer up`."""
        found: dict[str, Any] = json.loads(self.cli("up", *arguments))
        return found

    def edit(self, **properties: object) -> None:
        """Set properties in devcontainer.json."""
        path = self.folder / FILE
        path.write_text(json.dumps(json.loads(path.read_text()) | properties))

    def remove(self) -> None:
        """Remove the folder's containers and their volumes."""
        label = f"label=devcontainer.local_folder={self.folder}"
        for container in self.docker("ps", "--all", "--quiet", "--filter", label).split():
            mounts = json.loads(self.docker("inspect", "--format", "{{json .Mounts}}", container))
            self.docker("rm", "--force", "--volumes", container)
            for mount in mounts:
                if mount["Type"] == "volume" and mount["Name"].startswith("torchkiln-cache-"):
                    self.docker("volume", "rm", mount["Name"])

    def docker(self, *arguments: str) -> str:
        argv, environ = ["docker", *arguments], dict(self.workplace.environ)
        return run_program(argv, env=environ, check=True).stdout


@pytest.fixture
def folder(workplace: Workplace, shared: Path) -> Iterator[Opened]:
    """A folder that the engine sees under its own path, with train.py."""
    (shared / "train.py").write_text("print('here')\n")
    found = Opened(folder=shared, workplace=workplace)
    yield found
    found.remove()


@pytest.fixture
def opened(folder: Opened) -> Opened:
    """A folder with a dev container of a cell's image."""
    assert folder.kiln("init", "--devcontainer", "--image", IMAGE) == f"{FILE}\n"
    return folder


def test_the_folder_opens_in_the_image(opened: Opened) -> None:
    """The container has the image's user and Python, enough /dev/shm, a cache volume, and no GPU."""
    result = opened.up()

    assert (result["outcome"], result["remoteUser"]) == ("success", "root")
    assert result["remoteWorkspaceFolder"] == "/workspace"
    look = "id -un; pwd; command -v python; python train.py; echo $VIRTUAL_ENV; touch made"
    assert opened.cli("exec", "sh", "-c", look).splitlines() == [
        "root",
        "/workspace",
        "/opt/venv/bin/python",
        "here",
        "/opt/venv",
    ]
    assert (opened.folder / "made").exists()
    container = json.loads(opened.docker("inspect", result["containerId"]))[0]
    assert container["HostConfig"]["ShmSize"] == 8 << 30
    volumes = {mount["Destination"]: mount["Name"] for mount in container["Mounts"] if "Name" in mount}
    assert volumes["/root/.cache"].startswith("torchkiln-cache-")
    editor = json.loads(container["Config"]["Labels"]["devcontainer.metadata"])[-1]
    interpreter = editor["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    assert opened.cli("exec", interpreter, "-c", "import numpy; print(numpy.__name__)") == "numpy\n"


def test_the_ports_are_those_that_the_image_serves(opened: Opened) -> None:
    """The CLI passes the ports to the editor, which forwards them."""
    read = json.loads(opened.cli("read-configuration", "--include-merged-configuration"))
    merged = read["mergedConfiguration"]

    assert merged["forwardPorts"] == [8888, 6006]
    assert {port: each["label"] for port, each in merged["portsAttributes"].items()} == {
        "8888": "JupyterLab",
        "6006": "TensorBoard",
    }
    assert merged["otherPortsAttributes"] == {"onAutoForward": "ignore"}
    opened.up()
    reach = "import socket; socket.create_connection(('127.0.0.1', 8888))"
    wait = f'until python -c "{reach}" 2>/dev/null; do sleep 0.2; done'
    opened.cli("exec", "bash", "-c", f"/opt/torchkiln/entrypoint >/tmp/log 2>&1 & {wait}")
    assert "/lab?token=" in opened.cli("exec", "cat", "/tmp/log")


def test_a_project_opens_over_the_code_in_its_image(folder: Opened) -> None:
    """The documented commands build, load and open it. Python imports the edited code of the folder."""
    (folder.folder / "requirements.txt").write_text("numpy\n")
    (folder.folder / "mine.py").write_text("VALUE = 1\n")
    images, layout = folder.workplace.folder / "images", folder.workplace.folder / "dist"
    cell = load_locked(images, TAG)
    needs = needs_of(folder.folder, cell, Store(cache_root()))
    lock = ProjectLock(
        name=(name := "dev-project"),
        parent=TAG,
        parent_lock=lock_digest(cell),
        as_of=cell.as_of,
        inputs=inputs_digest(needs, cell),
        requirements=("numpy",),
        wheels=(),
    )
    save_project(folder.folder, lock)
    folder.kiln("project", "build", ".", "--images", str(images), "--output", str(layout), "--quiet")
    folder.kiln("run", "--runtime", "docker", "--output", str(layout), name, "--", "true")
    folder.kiln("init", "--devcontainer")
    try:
        result = folder.up()
        look = "import mine, numpy; print(mine.__file__, mine.VALUE)"
        first = folder.cli("exec", "python", "-c", look)
        (folder.folder / "mine.py").write_text("VALUE = 22\n")
        second = folder.cli("exec", "python", "-c", look)
    finally:
        folder.remove()
        folder.docker("image", "rm", f"pytorch-cuda:{name}")

    assert result["remoteWorkspaceFolder"] == "/app"
    assert (first, second) == ("/app/mine.py 1\n", "/app/mine.py 22\n")


def test_a_command_runs_once_after_the_container_is_made(opened: Opened) -> None:
    """It runs in the folder, as the image's user, with the image's Python."""
    opened.edit(postCreateCommand="python -c 'import getpass; print(getpass.getuser())' >>created")
    opened.up()
    opened.up()

    assert (opened.folder / "created").read_text() == "root\n"


def test_another_user_owns_what_is_written(opened: Opened) -> None:
    """Files written by `user` have that user's uid; the CLI does not map it to root, the folder's owner."""
    opened.edit(remoteUser="user", updateRemoteUserUID=False)
    opened.folder.chmod(0o777)
    assert opened.up()["remoteUser"] == "user"
    opened.cli("exec", "sh", "-c", "id -u >written")

    assert (opened.folder / "written").read_text() == "1000\n"
    assert (opened.folder / "written").stat().st_uid == 1000
