"""Runs every command of the READMEs in order, with small images, a local index and a local registry.

tests/unit/test_readmes.py checks that both READMEs have the same commands, and that a test runs each of them.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.docker.scene import TAG, Scene
from tests.engine.place import shared
from tests.engine.registry import RunningRegistry
from tests.integration.test_cleared_page import checkout
from tests.readmes import ENGLISH, blocks, commands, scene_of
from tests.readmes import Scene as Needs
from tests.servers.workspace import OLD, Workspace, a_workspace
from tests.workplace import Container, Workplace, key
from torchkiln.locks.lock import load_locked
from torchkiln.util.places import ROOT

__all__ = ["a_workspace", "checkout", "shared"]

pytestmark = pytest.mark.network  # the base, and pip's wheel, where the cache has none

TEXT = ENGLISH.read_text()


def those(scene: Needs) -> list[str]:
    """The commands of the README that run in *scene*, without duplicates."""
    return list(dict.fromkeys(command for command in commands(TEXT) if scene_of(command) is scene))


def changed(command: str, changes: Mapping[str, str]) -> str:
    """*command* with each key of *changes* replaced by its value."""
    for old, new in changes.items():
        command = command.replace(old, new)
    return command


def sh(command: str, folder: Path, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run *command* in *folder*; it must succeed."""
    argv = ["sh", "-eu", "-c", command]
    done = subprocess.run(argv, cwd=folder, env=dict(environ), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done


def with_python(folder: Path) -> str:
    """A PATH whose `python` is a script in *folder* that starts the Python of .venv."""
    folder.mkdir(exist_ok=True)
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nexec {ROOT}/.venv/bin/python "$@"\n')
    script.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.parametrize("command", those(Needs.OFFLINE))
def test_commands_without_a_network(command: str, tmp_path: Path) -> None:
    done = sh(command, ROOT, {**os.environ, "PATH": with_python(tmp_path / "bin")})

    assert done.stdout or " fresh" in done.stderr


def test_from_make_to_verify(scene: Scene, checkout: Path, registry: RunningRegistry) -> None:
    """In a checkout with a small image: build, run, load, smoke, publish, verify."""
    (checkout / "Makefile").write_text((ROOT / "Makefile").read_text())
    (checkout / ".venv").symlink_to(ROOT / ".venv")
    matrix = checkout / "matrix.yaml"
    # Not the name that tests/docker uses, because its images may be in the same engine.
    matrix.write_text(matrix.read_text().replace("repository: pytorch-cuda", "repository: pytorch-readme"))
    environ = scene.settings(
        PATH=with_python(checkout / "bin"),
        PYTHONPATH=str(checkout),
        DOCKER_CONFIG=str(checkout / "docker"),
    )
    for name in ("lab", "publisher"):
        sh(
            f"openssl genpkey -algorithm ed25519 -out {name}.pem; chmod 600 {name}.pem;"
            f" openssl pkey -in {name}.pem -pubout -out {name}.pub.pem",
            checkout,
            environ,
        )
    changes = {
        "TAG": TAG,
        "registry.example": registry.host,
        "print(torch.__version__, torch.version.cuda, torch.backends.cudnn.version())": "print(torch.main())",
        "make ": "make -o .venv/.ready ",  # .venv is complete, so do not install it again
    }
    printed = {
        command: sh(changed(command, changes), checkout, environ).stdout for command in those(Needs.CHECKOUT)
    }

    digest = next(line for line in printed["make image"].splitlines() if line.startswith("sha256:"))
    assert printed["python build.py --torch 2.7 --cuda 12.1"] == f"{digest}\n"
    assert printed["python build.py --torch 2.7 --cuda 12.1 --load"] == f"{digest}\n"
    assert [out for line, out in printed.items() if line.startswith("python build.py run ")] == ["0\n"]
    assert f"{registry.host}/team/pytorch@{digest}\n" in "".join(printed.values())
    assert scene.docker("images", "--quiet", "pytorch-readme:v2.7")
    scene.docker("rmi", "--force", f"pytorch-readme:{TAG}", "pytorch-readme:v2.7")


def test_the_matrix_of_the_readme_is_locked(workspace: Workspace) -> None:
    """In a folder with that matrix.yaml, against a local index."""
    project = workspace.folder.path.parent
    (project / "matrix.yaml").write_text(blocks(TEXT, "yaml")[0])
    (project / "build.py").symlink_to(ROOT / "build.py")
    for name in ("jupyterlab", "transformers", "tensorboard"):
        workspace.server.add("default", name, "1.0", date=OLD)
    (command,) = those(Needs.PROJECT)
    inherited = {name: value for name, value in os.environ.items() if name != "TORCHKILN_INDEX_PYTORCH"}
    environ = {
        **inherited,
        **workspace.environ,
        "TORCHKILN_CACHE": str(workspace.store.root),
        "PATH": with_python(project / "bin"),
        "PYTHONPATH": str(ROOT),
    }
    tag = sh(command, project, environ).stdout.strip()

    found = load_locked(project / "images", tag)
    assert {"numpy", "jupyterlab", "pip", "transformers", "tensorboard"} <= {
        wheel.name for wheel in found.wheels
    }


@pytest.fixture
def home(shared: Path) -> Path:
    """A home with an SSH key, and a folder `workspace`, which the engine can mount."""
    place, _ = key(shared)
    (shared / ".ssh").mkdir(mode=0o700)
    (shared / "workspace").mkdir()
    place.rename(shared / ".ssh/id_ed25519")
    place.with_suffix(".pub").rename(shared / ".ssh/id_ed25519.pub")
    return shared


def test_jupyter_ssh_and_packages_on_top(workplace: Workplace, home: Path) -> None:
    """The image has JupyterLab and numpy but no torch; this machine has no GPUs and other ports."""
    environ = {**workplace.environ, "HOME": str(home)}
    name = f"readme-{os.getpid()}"
    container = Container(name=name, environ=workplace.environ)
    options = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o BatchMode=yes"
    changes = {
        "--gpus all ": "",
        "-p 8888:8888 -p 2222:22": "-p 127.0.0.1::8888 -p 127.0.0.1::22",
        "--name work": f"--name {name}",
        "logs work": f"logs {name}",
        "pytorch-cuda:v2.7": workplace.image,
    }
    (home / "requirements.txt").write_text("numpy\n")
    (home / "Dockerfile").write_text(changed(blocks(TEXT, "dockerfile")[0], changes))
    printed = {}
    try:
        for command in those(Needs.CONTAINER):
            line = changed(command, changes)
            if command.startswith("ssh "):
                container.serves()
                line = line.replace("-p 2222", f"-p {container.port(22)} -i .ssh/id_ed25519 {options}")
                line = line.replace("localhost", "127.0.0.1") + " python -c \"'import numpy; print(1)'\""
            printed[command] = sh(line, home, environ)
            if " run " in command:
                container.says(r"/lab\?token=\w+")
    finally:
        container.docker("rm", "--force", "--volumes", name, check=False)
        container.docker("rmi", "--force", "my-project", check=False)

    log = printed["docker logs work"]
    assert re.search(r"Jupyter: http://127\.0\.0\.1:8888/lab\?token=\w+", log.stdout + log.stderr)
    assert printed["ssh -p 2222 user@localhost"].stdout == "1\n"
    assert "Requirement already satisfied: numpy" in printed["docker build -t my-project ."].stderr


@pytest.mark.skipif(not those(Needs.INSTALLED), reason="this torchkiln has no command `init`")
def test_the_commands_of_an_installed_torchkiln_have_their_own_test() -> None:
    """test_installed.py installs the wheel and runs them in an empty folder."""
    files = (Needs.INSTALLED.value, "tests/installed.py")
    text = "".join((ROOT / file).read_text() for file in files)

    words = [
        command.split()[1 if command.startswith("torchkiln ") else -2] for command in those(Needs.INSTALLED)
    ]
    assert [word for word in words if f'"{word}"' not in text] == []
