"""`build --engine docker`: the image, errors, contexts, and a second engine that pulls."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.docker.scene import NAME, TAG, Scene
from tests.engine.registry import RunningRegistry
from tests.realpip import locked_pip
from tests.roots import tiny_root
from torchkiln.docker.daemon import Engine, load
from torchkiln.errors import BuildFailed
from torchkiln.model.progress import Silent
from torchkiln.oci.layout import open_layout

pytestmark = pytest.mark.network  # pip's wheel, and if it is not cached, the base


@pytest.fixture(scope="module")
def built(scene: Scene) -> dict[str, Any]:
    """The JSON result of a build."""
    ran = scene.kiln("--engine", "docker", "--json")
    assert ran.returncode == 0, ran.stderr
    assert "RUN --mount" in ran.stderr
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer


def test_the_image_is_in_the_engine_under_its_names(scene: Scene, built: dict[str, Any]) -> None:
    assert built["names"] == [NAME, "pytorch-cuda:2.7-cuda12.1-runtime", "pytorch-cuda:v2.7"]
    for name in (NAME, "pytorch-cuda:v2.7"):
        (found,) = json.loads(scene.docker("image", "inspect", name))
        assert found["Id"] == built["digest"]
        assert found["Config"]["WorkingDir"] == "/workspace"
        assert found["Config"]["Labels"]["org.opencontainers.image.version"] == TAG


def test_the_result_contains_the_base(scene: Scene, built: dict[str, Any]) -> None:
    lock = scene.images / TAG / "lock.json"
    assert built["base"] == json.loads(lock.read_bytes())["base"]["digest"]
    assert built["base_newer_than_lock"] == []


def test_the_locked_wheels_are_installed(scene: Scene, built: dict[str, Any]) -> None:
    code = "import torch, sympy, importlib.metadata as m; print(torch.__file__, m.version('pip'))"
    output = scene.docker("run", "--rm", "--entrypoint", "python", NAME, "-c", code).split()

    assert output == ["/opt/venv/lib/python3.11/site-packages/torch/__init__.py", locked_pip().version]


def test_the_same_build_again_is_the_same_image(scene: Scene, built: dict[str, Any]) -> None:
    again = scene.kiln("--engine", "docker")

    assert again.returncode == 0, again.stderr
    assert again.stdout.strip() == built["digest"]


def test_an_image_of_the_embedded_engine_is_loaded_and_runs(scene: Scene) -> None:
    """Its tag and aliases no longer name the image that BuildKit made."""
    ran = scene.kiln("--load", "--json")
    assert ran.returncode == 0, ran.stderr
    expected = json.loads(ran.stdout)

    assert expected["loaded"] == [NAME, "pytorch-cuda:2.7-cuda12.1-runtime", "pytorch-cuda:v2.7"]
    for name in expected["loaded"]:
        (found,) = json.loads(scene.docker("image", "inspect", name))
        assert found["RootFS"]["Layers"] == [layer["diff_id"] for layer in expected["layers"]]
    code = "import torch, sys; print(torch.__file__, sys.prefix)"
    output = scene.docker("run", "--rm", "--entrypoint", "python", NAME, "-c", code).split()
    assert output == ["/opt/venv/lib/python3.11/site-packages/torch/__init__.py", "/opt/venv"]


def test_an_image_with_a_lost_layer_is_not_loaded(scene: Scene) -> None:
    """The load fails without waiting for the layer, and no name refers to an incomplete image."""
    assert scene.kiln("--output", "broken").returncode == 0
    image = open_layout(scene.images.parent / "broken").image(TAG)
    image.layers[3].path.unlink()
    host = scene.environ["DOCKER_HOST"]

    with pytest.raises(BuildFailed, match=r"cannot load the image.*No such file"):
        load(image, ["cut:1"], Engine(host=host, version=""), Silent())

    assert scene.docker("image", "ls", "--quiet", "cut:1") == ""


def test_the_engine_of_a_context(scene: Scene, built: dict[str, Any]) -> None:
    """Like Docker's client, the build uses the context in DOCKER_CONTEXT if DOCKER_HOST is unset."""
    host = scene.environ["DOCKER_HOST"]
    scene.docker("context", "create", "far", "--docker", f"host={host}")
    by_context = replace(scene, environ={k: v for k, v in scene.environ.items() if k != "DOCKER_HOST"})
    try:
        ran = by_context.kiln("--engine", "docker", "--json", DOCKER_CONTEXT="far")
        assert ran.returncode == 0, ran.stderr
        expected = json.loads(ran.stdout)
        assert (expected["digest"], expected["engine"]["host"]) == (built["digest"], host)

        ran = by_context.kiln("--engine", "docker", DOCKER_CONTEXT="farther")
        assert ran.returncode == 8
        assert re.search('cannot read the Docker context: .*"farther"', ran.stderr)
    finally:
        scene.docker("context", "rm", "far")


def test_a_failed_step_is_shown_with_its_last_lines_and_its_position(scene: Scene, tmp_path: Path) -> None:
    """The step fails because the base has a shell, but neither dpkg nor apt-get."""
    root = tiny_root(tmp_path / "root")
    with (tmp_path / "root.tar").open("wb") as out:
        subprocess.run(["tar", "-C", root, "-c", "."], stdout=out, check=True)
    scene.docker("import", str(tmp_path / "root.tar"), "tiny:1")

    ran = scene.kiln("--engine", "docker", "--base", "tiny:1", "--json")

    assert ran.returncode == 6
    assert ran.stdout == ""
    error = json.loads(ran.stderr.splitlines()[-1])["error"]
    assert re.match(
        r"step '\[stage-\d \d+/\d+\] RUN --mount=type=secret.*failed: .*exit code: 127",
        error,
        re.DOTALL,
    )
    assert "apt-get: not found" in error
    assert re.search(r"Dockerfile:\d+\n", error)
    assert re.search(r">>> RUN --mount=.*\n.*>>>     set --;", error)
    assert "Traceback" not in ran.stderr
    assert list((scene.cache / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("unix:///nowhere/docker.sock", "No such file or directory.*\nhint: start Docker"),
        ("tcp://127.0.0.1:9", "Connection refused.*\nhint: start Docker"),
        ("nonsense", "\nhint: check DOCKER_HOST"),
    ],
)
def test_an_unreachable_engine_is_reported_with_a_hint(scene: Scene, host: str, expected: str) -> None:
    ran = scene.kiln("--engine", "docker", DOCKER_HOST=host)

    assert ran.returncode == 8
    message = f"(?s)^error: cannot connect to the Docker engine at {host}: .*{expected}"
    assert re.search(message, ran.stderr, re.MULTILINE)
    assert "Traceback" not in ran.stderr


# --- two engines -----------------------------------------------------------------------------------


FAR = "torchkiln-far"


def ask(environ: Mapping[str, str], *arguments: str) -> str:
    """The output of Docker's client in *environ*."""
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


def test_a_context_selects_the_other_engine(
    scene: Scene, second_engine: Mapping[str, str], context: str
) -> None:
    """The other engine builds from the sent context only, and runs the image. The first engine lacks it."""
    before = ids(scene.environ, NAME)
    ran = scene.kiln("--engine", "docker", "--json", DOCKER_HOST="", DOCKER_CONTEXT=context)
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)

    assert result["engine"]["host"] == second_engine["DOCKER_HOST"] != scene.environ["DOCKER_HOST"]
    assert ids(second_engine, NAME) == [result["digest"]]
    assert ids(scene.environ, NAME) == before
    version = ask(second_engine, "run", "--rm", "--entrypoint", "/opt/venv/bin/pip", NAME, "--version")
    assert version.startswith("pip ")


def test_an_image_pushed_by_one_engine_runs_in_the_other(
    scene: Scene, registry: RunningRegistry, second_engine: Mapping[str, str]
) -> None:
    """Push with torchkiln and with `docker push`: layers and configuration are the same."""
    target = f"{registry.host}/moved/ours"
    assert scene.kiln("--load", "--quiet").returncode == 0
    ran = scene.publish(target, "--json")
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    scene.docker("tag", NAME, f"{registry.host}/moved/theirs:{TAG}")
    scene.docker("push", "--quiet", f"{registry.host}/moved/theirs:{TAG}")

    for name in (result["reference"], f"{registry.host}/moved/theirs:{TAG}"):
        ask(second_engine, "pull", "--quiet", name)
        assert ids(second_engine, name.partition("@")[0]) == [result["digest"]]
        listed = ask(second_engine, "run", "--rm", "--entrypoint", "/opt/venv/bin/pip", name, "list")
        assert "sympy" in listed
        ask(second_engine, "image", "rm", "--force", name)
