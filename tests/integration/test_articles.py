"""The command lines of the articles that users follow, as printed, on a host without a GPU.

`--gpus all` is removed, because an engine without GPUs rejects it. Image names are replaced by the name
of a small image.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import requests

from tests.clients import READY, Client
from tests.engine.place import shared
from tests.programs import run_program
from tests.workplace import HEALTHCHECK, IMAGE, Container, Workplace, key

__all__ = ["shared"]

pytestmark = pytest.mark.network  # wheels, and if it is not cached, the base

MINOR = "pytorch-cuda:v2.6"  # an alias, as `pytorch-cuda:v2.7` is
DIRECT = {"http": ""}


@pytest.fixture
def name() -> str:
    return f"article-{os.getpid()}-{time.monotonic_ns()}"


@pytest.fixture
def work(shared: Path) -> Path:
    """The folder ./workspace, owned by a user who is not root."""
    folder = shared / "workspace"
    folder.mkdir()
    os.chown(folder, 1000, 1000)
    (folder / "train.py").write_text("import time\nprint('training', flush=True)\ntime.sleep(600)\n")
    return folder


def on_a_terminal(line: str, environ: Mapping[str, str], typed: str) -> str:
    """The output of *line* on a terminal with the input *typed*."""
    argv = ["script", "--quiet", "--return", "--command", line, "/dev/null"]
    done = run_program(argv, input=typed, env={**environ, "TERM": "xterm"}, timeout=600)
    return done.stdout


@pytest.fixture
def running(workplace: Workplace, name: str, work: Path, tmp_path: Path) -> Iterator[tuple[Container, Path]]:
    """docker run -it --gpus all -p 8888:8888 -p 2222:22 -v ./workspace:/workspace pytorch-cuda:v2.7

    In addition, with a name and an SSH key, and on free ports.
    """
    private, public = key(tmp_path)
    ports = "-p 127.0.0.1::8888 -p 127.0.0.1::22"
    line = f'docker run -it --name {name} {ports} -v {work}:/workspace -e SSH_PUBLIC_KEY="{public}" {MINOR}'
    argv = ["script", "--quiet", "--return", "--command", line, "/dev/null"]
    process = subprocess.Popen(
        argv,
        env={**workplace.environ, "TERM": "xterm"},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    container = Container(name=name, environ=workplace.environ)
    try:
        end = time.monotonic() + 300
        while container.docker("inspect", name, check=False).returncode:
            assert time.monotonic() < end
            time.sleep(0.05)
        yield container, private
    finally:
        container.docker("rm", "--force", "--volumes", name, check=False)
        process.communicate()


def test_jupyter_and_ssh_on_a_terminal(running: tuple[Container, Path], work: Path) -> None:
    """Both services run, as do `tmux` and `nohup python train.py &` over SSH; files belong to the user."""
    container, private = running
    token = container.says(r"token=(\w{32,})")[1]
    container.says(READY)
    container.serves()
    url = f"http://127.0.0.1:{container.port(8888)}/api/contents/train.py?token={token}"
    assert requests.get(url, timeout=300, proxies=DIRECT).status_code == 200

    client = Client(container=container, key=private)
    client.ssh(terminal=True, user="user", text="nohup python train.py &\nsleep 1; exit\n")
    assert (work / "nohup.out").read_text() == "training\n"
    assert (work / "nohup.out").stat().st_uid == 1000
    assert client.ssh("tmux new-session -d -s work 'sleep 600'", user="user").returncode == 0
    found = client.ssh("tmux ls; pgrep -cf [t]rain.py", user="user").stdout
    assert (found.startswith("work:"), found.splitlines()[-1]) == (True, "1")


def test_an_interactive_shell_with_rm(workplace: Workplace, work: Path) -> None:
    """docker run -it --rm --gpus all -v $(pwd):/workspace -p 6006:6006 --shm-size=8g IMAGE bash"""
    line = f"docker run -it --rm -v {work}:/workspace -p 127.0.0.1::6006 --shm-size=8g {IMAGE} bash"
    typed = "df -h /dev/shm | tail -1\nls\nexit 7\n"
    screen = on_a_terminal(f"{line}; echo code $?", workplace.environ, typed)

    assert "code 7" in screen
    assert "8.0G" in screen
    assert "train.py" in screen
    assert "add --gpus all" in screen
    assert "/dev/shm has" not in screen


def test_a_job_of_github_actions(workplace: Workplace, name: str, shared: Path) -> None:
    """The runner starts `container:` with another entrypoint and HOME; `docker exec sh -e` runs the steps."""
    home, job = shared / "home", shared / "work"
    for folder in (home, job):
        folder.mkdir()
    (job / "step.sh").write_text(
        "python -c 'import numpy, sys; print(sys.prefix)'; touch made; echo $HOME $CI\n"
    )
    mounts = ("-v", f"{home}:/github/home", "-v", f"{job}:/__w")
    options = ("--workdir", "/__w", *mounts, "-e", "HOME=/github/home", "-e", "CI=true")
    container = Container(name=name, environ=workplace.environ)
    container.docker("create", "--name", name, *options, "--entrypoint", "tail", IMAGE, "-f", "/dev/null")
    try:
        container.docker("start", name)
        step = container.docker(
            "exec", "-i", "-e", "CI=true", "--workdir", "/__w", name, "sh", "-e", "/__w/step.sh"
        )
        assert step.stdout == "/opt/venv\n/github/home true\n"
        container.inside(HEALTHCHECK)
        assert (job / "made").exists()
    finally:
        container.docker("rm", "--force", "--volumes", name)
