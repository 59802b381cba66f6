"""The real image of each engine as people work in it: what imports torch, and what its wheels alone show."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.clients import READY, Client, browsing, output, sessions
from tests.engine.place import shared
from tests.outward import outward
from tests.proof.conftest import NAME, TAG, let_go
from tests.workplace import Container, Workplace, key
from torchkiln.util.places import ROOT

__all__ = ["shared"]

pytestmark = pytest.mark.proof

VERSION = "2.7.1+cu126"
COMPILED = """
import getpass, os, torch
f = torch.compile(lambda x: torch.sin(x) ** 2 + torch.cos(x) ** 2)
assert torch.allclose(f(torch.randn(1000)), torch.ones(1000), atol=1e-5)
print(getpass.getuser(), os.path.isdir(os.path.join('/tmp', 'torchinductor_user')))
"""


@pytest.fixture(scope="module", params=["docker", "embedded"])
def real(
    request: pytest.FixtureRequest, image: dict[str, Any], engine: Mapping[str, str]
) -> Iterator[Workplace]:
    """The headline image as the engine that is named built it, in a Docker engine."""
    if request.param == "docker":
        request.getfixturevalue("by_docker")
        yield Workplace(environ=engine, image=NAME)
        return
    let_go(engine)
    argv = [sys.executable, str(ROOT / "build.py"), "--torch", "2.7", "--cuda", "12.1"]
    argv += ["--output", image["layout"], "--load"]
    done = subprocess.run(argv, env=dict(engine), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    yield Workplace(environ=engine, image=NAME)
    let_go(engine)


@pytest.fixture(scope="module")
def container(real: Workplace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Container, Path]]:
    """As the articles start it; and the key that it lets in."""
    private, public = key(tmp_path_factory.mktemp("keys"))
    ports = ("--publish", "127.0.0.1::8888", "--publish", "127.0.0.1::22")
    given = ("-e", f"SSH_PUBLIC_KEY={public}", "-e", "MINE=1", "-e", "NVIDIA_VISIBLE_DEVICES=all")
    with real.started(*ports, *given, "--shm-size", "1g") as found:
        found.says(READY)
        found.serves()
        yield found, private


@pytest.mark.parametrize("kind", sessions(""))
def test_every_kind_of_session_imports_torch(container: tuple[Container, Path], kind: str) -> None:
    look = "python -c 'import torch; print(torch.__version__)'; echo $NVIDIA_VISIBLE_DEVICES $MINE"
    command, text, terminal = sessions(look)[kind]
    found, private = container
    done = Client(container=found, key=private).ssh(*command, text=text, terminal=terminal, user="user")

    assert done.returncode == 0, done.stderr
    assert f"{VERSION}\nall 1\n" in done.stdout.replace("\r", "")


def test_a_notebook_imports_torch(container: tuple[Container, Path]) -> None:
    """In a real browser, from the printed address to the output."""
    with browsing() as (page, asked):
        said = output(container[0], page, "import torch; torch.__version__")

    assert (said, asked) == (f"'{VERSION}'", {"127.0.0.1"})


def test_torch_compile_as_anybody(real: Workplace) -> None:
    """Under Kubernetes' restricted standard, with a cache that can be written."""
    options = ("--user", "12345:12345", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
    ran = real.run(*options, command=["python", "-c", COMPILED])

    assert (ran.returncode, ran.stdout) == (0, "user True\n"), ran.stderr


def test_torch_is_not_replaced(real: Workplace, shared: Path) -> None:
    """By none of the ways in which it usually happens; and pip has nothing to say against what is there."""
    for command in (
        ["pip", "install", "--dry-run", "torch==2.8.0"],
        ["pip", "install", "--dry-run", "--upgrade", "torchvision==0.23.0"],
        ["uv", "pip", "install", "--dry-run", "nvidia-cublas-cu12==12.8.4.1"],
    ):
        ran = real.run(*outward(shared), command=command)
        assert ran.returncode != 0, command
        assert "torchkiln: if this conflicts with torch" in ran.stderr
    assert real.run(command=["pip", "check"]).stdout == "No broken requirements found.\n"


def test_doctor_finds_everything_in_its_place(real: Workplace) -> None:
    """On a host without a GPU, which it says."""
    ran = real.run("--shm-size", "1g", command=["doctor", "--json"])
    lines = {line["about"]: line for line in json.loads(ran.stdout)["lines"]}

    states = {about: line["state"] for about, line in lines.items() if line["state"] != "ok"}
    assert (ran.returncode, states) == (0, {"driver": "warning", "GPUs": "warning"})
    assert (lines["cuDNN"]["found"], TAG in lines["image"]["found"]) == ("9.5.1.17", True)


def test_doctor_sees_that_torch_is_another(real: Workplace, shared: Path) -> None:
    """Where the guard was let go of."""
    options = (*outward(shared), "-e", "PIP_CONSTRAINT=", "-e", "UV_CONSTRAINT=")
    replaced = "pip install -q --no-deps --force-reinstall nvidia-nvtx-cu12==12.8.90"
    asked = f"{replaced}; /opt/torchkiln/entrypoint doctor"
    ran = real.run(*options, command=["sh", "-c", asked])

    assert (
        "warning  torch      changed since the image was built: nvidia-nvtx-cu12 12.8.90 instead of 12.6.77"
        in ran.stdout
    )
