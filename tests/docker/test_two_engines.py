"""Two engines side by side: one builds where a context says so, and pulls what the other has pushed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping

import pytest

from tests.docker.scene import NAME, TAG, Scene
from tests.engine.registry import RunningRegistry

pytestmark = pytest.mark.network  # pip's wheel, and where the cache has none, the base

FAR = "torchkiln-far"


def ask(environ: Mapping[str, str], *arguments: str) -> str:
    """What Docker's client answers in *environ*."""
    argv = ["docker", *arguments]
    return subprocess.run(argv, env=dict(environ), capture_output=True, text=True, check=True).stdout


@pytest.fixture
def context(scene: Scene, second_engine: Mapping[str, str]) -> Iterator[str]:
    """A Docker context of the first engine's client that leads to the second."""
    scene.docker("context", "create", FAR, "--docker", f"host={second_engine['DOCKER_HOST']}")
    yield FAR
    scene.docker("context", "rm", "--force", FAR)


def ids(environ: Mapping[str, str], name: str) -> list[str]:
    """The images of that name, by their ids."""
    return ask(environ, "image", "ls", "--quiet", "--no-trunc", name).split()


def test_a_context_leads_to_the_other_engine(
    scene: Scene, second_engine: Mapping[str, str], context: str
) -> None:
    """It builds there, from nothing but what is sent to it; the image runs there, and here it is not."""
    before = ids(scene.environ, NAME)
    ran = scene.kiln("--engine", "docker", "--json", DOCKER_HOST="", DOCKER_CONTEXT=context)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)

    assert told["engine"]["host"] == second_engine["DOCKER_HOST"] != scene.environ["DOCKER_HOST"]
    assert ids(second_engine, NAME) == [told["digest"]]
    assert ids(scene.environ, NAME) == before
    version = ask(second_engine, "run", "--rm", "--entrypoint", "/opt/venv/bin/pip", NAME, "--version")
    assert version.startswith("pip ")


def test_what_one_pushed_the_other_pulls_and_runs(
    scene: Scene, registry: RunningRegistry, second_engine: Mapping[str, str]
) -> None:
    """Our own push, and Docker's of what was loaded: the digest stays, layers and configuration with it."""
    target = f"{registry.host}/moved/ours"
    assert scene.kiln("--load", "--quiet").returncode == 0
    ran = scene.publish(target, "--json")
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    scene.docker("tag", NAME, f"{registry.host}/moved/theirs:{TAG}")
    scene.docker("push", "--quiet", f"{registry.host}/moved/theirs:{TAG}")

    for name in (told["reference"], f"{registry.host}/moved/theirs:{TAG}"):
        ask(second_engine, "pull", "--quiet", name)
        assert ids(second_engine, name.partition("@")[0]) == [told["digest"]]
        listed = ask(second_engine, "run", "--rm", "--entrypoint", "/opt/venv/bin/pip", name, "list")
        assert "sympy" in listed
        ask(second_engine, "image", "rm", "--force", name)
