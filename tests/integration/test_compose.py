"""deploy/compose on a real engine, started by pytest-docker, with an image that has no torch."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests
import yaml
from pytest_docker.plugin import Services

from tests.clients import Client
from tests.deploy_page import blocks
from tests.engine.compose import with_compose
from tests.engine.place import shared
from tests.engine.root import NoEngine
from tests.needs import give_up, without_gpus
from tests.programs import run_program
from tests.workplace import Container, Workplace, key
from torchkiln.util.places import ROOT

__all__ = ["shared"]

pytestmark = pytest.mark.network  # wheels, Compose, and if it is not cached, the base

KIT = ROOT / "deploy/compose"
TOKEN = "a-token-that-is-long-enough"
FREE = "127.0.0.1:0"  # any free port


@dataclass(frozen=True, kw_only=True)
class Compose:
    """Runs `docker compose` in deploy/compose, with settings like those of an .env file."""

    environ: Mapping[str, str]
    private: Path
    project: str = f"kit-{os.getpid()}"

    def run(self, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """`docker compose WORDS`."""
        argv = ["docker", "compose", "--project-name", self.project, *words]
        environ = {**self.environ, **settings}
        return run_program(argv, cwd=KIT, env=environ)

    def container(self, service: str) -> Container:
        """The container of *service*."""
        done = self.run("ps", "--quiet", service)
        assert done.returncode == 0, done.stderr
        return Container(name=done.stdout.strip(), environ=self.environ)


@pytest.fixture(scope="session")
def compose(workplace: Workplace, tmp_path_factory: pytest.TempPathFactory) -> Compose:
    """Compose, with the settings of .env.example and the small image."""
    folder = tmp_path_factory.mktemp("compose")
    private, public = key(folder)
    settings = {
        "COMPOSE_FILE": "compose.yaml:compose.cpu.yaml",
        "COMPOSE_PROFILES": "ssh,tensorboard",
        "IMAGE": workplace.image,
        "SHM_SIZE": "64m",
        "JUPYTER_TOKEN": TOKEN,
        "SSH_PUBLIC_KEY": public,
        **{f"{service}_ADDRESS": FREE for service in ("JUPYTER", "SSH", "TENSORBOARD")},
    }
    try:
        environ = with_compose(workplace.environ, folder / "docker")
    except NoEngine as error:
        give_up(str(error))
    return Compose(environ={**environ, **settings}, private=private)


# --- pytest-docker ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def docker_compose_command(compose: Compose) -> str:
    """The command of pytest-docker, with `env`, because pytest-docker cannot set environment variables."""
    changed = {name: value for name, value in compose.environ.items() if os.environ.get(name) != value}
    return shlex.join(["env", *(f"{name}={value}" for name, value in changed.items()), "docker", "compose"])


@pytest.fixture(scope="session")
def docker_compose_file() -> list[str]:
    return [str(KIT / "compose.yaml"), str(KIT / "compose.cpu.yaml")]


@pytest.fixture(scope="session")
def docker_compose_project_name(compose: Compose) -> str:
    return compose.project


@pytest.fixture(scope="session")
def docker_setup() -> Sequence[str]:
    """The start command of pytest-docker; `--wait` waits until the image's health checks pass."""
    return ["up --detach --wait"]


def get(services: Services, address: tuple[str, int], path: str) -> requests.Response:
    session = requests.Session()
    session.trust_env = False  # no proxy for 127.0.0.1
    return session.get(f"http://127.0.0.1:{services.port_for(*address)}{path}", timeout=300)


# --- the services ----------------------------------------------------------------------------------


def test_every_service_is_healthy_and_answers(docker_services: Services, compose: Compose) -> None:
    """JupyterLab requires its token, TensorBoard none. The ports are open on 127.0.0.1 only."""
    listed = compose.run("ps", "--format", "json").stdout.splitlines()
    states = {found["Service"]: found["Health"] for found in map(json.loads, listed)}

    assert states == dict.fromkeys(("jupyter", "ssh", "tensorboard"), "healthy")
    jupyter = ("jupyter", 8888)
    assert get(docker_services, jupyter, f"/api/contents?token={TOKEN}").status_code == 200
    assert get(docker_services, jupyter, "/api/contents?token=another").status_code == 403
    assert "TensorBoard" in get(docker_services, ("tensorboard", 6006), "/").text
    for service, port in (jupyter, ("ssh", 22), ("tensorboard", 6006)):
        assert compose.run("port", service, str(port)).stdout.startswith("127.0.0.1:")


def test_ssh_and_jupyter_share_the_volumes(docker_services: Services, compose: Compose) -> None:
    """Each container runs only its own service. All have the same files, and /dev/shm of the set size."""
    client = Client(container=compose.container("ssh"), key=compose.private)
    look = "mkdir -p /workspace/runs; echo from ssh | tee /workspace/runs/a ~/b; stat -fc '%b %S' /dev/shm"
    done = client.ssh(look)

    assert (done.returncode, done.stdout) == (0, "from ssh\n16384 4096\n"), done.stderr
    jupyter = compose.container("jupyter")
    assert jupyter.inside("cat", "/workspace/runs/a", "/root/b") == "from ssh\n" * 2
    assert compose.container("tensorboard").inside("cat", "/workspace/runs/a") == "from ssh\n"
    assert "sshd" not in jupyter.inside("ps", "-eo", "comm=")
    assert "jupyter" not in client.ssh("ps -eo comm=").stdout


def test_a_new_container_has_the_files_and_the_host_keys(docker_services: Services, compose: Compose) -> None:
    """Files and host keys stay when the container is replaced, for example after an update of the image."""
    fingerprint = compose.container("ssh").says(r"host key (SHA256:\S+)")[1]
    compose.container("ssh").inside("touch", "/workspace/kept")
    done = compose.run("up", "--detach", "--force-recreate", "ssh")
    assert done.returncode == 0, done.stderr
    container = compose.container("ssh")

    assert container.says(r"host key (SHA256:\S+)")[1] == fingerprint
    assert container.inside("ls", "/workspace/kept") == "/workspace/kept\n"


# --- settings --------------------------------------------------------------------------------------


def test_settings_reach_compose(compose: Compose) -> None:
    """Settings change the containers as lines of an .env file do. Without its profile, ssh does not start."""
    settings = {"RUN_AS": "4711:4712", "WORKSPACE": "./workspace", "COMPOSE_PROFILES": "", "GPUS": "2"}
    done = compose.run("config", "--format", "json", COMPOSE_FILE="compose.yaml", **settings)
    found = json.loads(done.stdout)["services"]

    assert list(found) == ["jupyter"]
    assert found["jupyter"]["user"] == "4711:4712"
    assert found["jupyter"]["volumes"][0]["source"] == str(KIT / "workspace")
    (device,) = found["jupyter"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"]) == ("nvidia", 2)


def test_the_pages_commands(compose: Compose, tmp_path: Path) -> None:
    """The commands run as printed. The test's settings are variables, which win over the file .env."""
    shutil.copytree(KIT, tmp_path / "deploy/compose", ignore=shutil.ignore_patterns(".env"))
    (script,) = blocks("Compose")
    project = f"{compose.project}-page"
    environ = {**compose.environ, "COMPOSE_PROJECT_NAME": project, "COMPOSE_PROFILES": ""}
    argv = ["sh", "-eu", "-c", script]
    try:
        done = run_program(argv, cwd=tmp_path, env=environ, input="")
        volumes = Container(name="", environ=compose.environ).docker(
            "volume", "ls", "--quiet", "--filter", f"label=com.docker.compose.project={project}"
        )
    finally:
        Compose(environ=environ, private=compose.private, project=project).run("down", "--volumes")

    assert done.returncode == 0, done.stderr
    assert "Jupyter: http://127.0.0.1:8888/lab" in done.stdout
    expected = ("home", "host-keys", "user-home", "workspace")
    assert volumes.stdout.split() == [f"{project}_{name}" for name in expected]


@without_gpus
def test_gpus_are_requested(compose: Compose) -> None:
    """Without the file for machines without GPUs, an engine without GPUs refuses the container."""
    other = Compose(environ=compose.environ, private=compose.private, project=f"{compose.project}-gpus")
    try:
        done = other.run("up", "--detach", "jupyter", COMPOSE_FILE="compose.yaml", COMPOSE_PROFILES="")
    finally:
        other.run("down", "--volumes")

    assert done.returncode != 0
    assert 'could not select device driver "nvidia" with capabilities: [[gpu]]' in done.stderr


def test_the_example_has_every_setting() -> None:
    """.env.example has each setting of compose.yaml as a comment, with its default if it has one."""
    text = (KIT / "compose.yaml").read_text()
    defaults = dict(re.findall(r"\$\{([A-Z_]+):-([^}]+)\}", text))
    services = yaml.safe_load(text)["services"].values()
    passed = {name for found in services for name, value in found["environment"].items() if value is None}
    example = re.findall(r"^#([A-Z_]+)=(.*)$", (KIT / ".env.example").read_text(), re.MULTILINE)

    assert {name for name, _ in example} - {"COMPOSE_FILE", "COMPOSE_PROFILES"} == {*defaults, *passed}
    named = {name: value for name, value in example if name in defaults}
    assert {name: value for name, value in named.items() if value != defaults[name]} == {
        "RUN_AS": "1000:1000",
        "WORKSPACE": "./workspace",
    }
