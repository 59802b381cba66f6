"""GPUs in Docker and Podman on a host without GPUs: engines refuse them, or a CDI specification fakes them.

These tests are in one file, so in one process, because every Podman of the host reads the specification.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.compose import with_compose
from tests.engine.place import NAME, Place, line_of, place, shared
from tests.needs import without_gpus
from torchkiln.util.places import ROOT

__all__ = ["place", "shared"]

pytestmark = pytest.mark.proof


@without_gpus
def test_gpus_without_an_engine_that_supports_them(place: Place) -> None:
    """By default, `run` requests no GPU. If the user requests one, `run` fails with a hint."""
    assert "--gpus" not in line_of(place.run("--", "id").stderr)
    got = place.run("--gpus", "all", "--", "id")
    messages = {
        "docker": ("hint: the engine does not support GPUs", "--gpus all"),
        "podman": ("hint: create a CDI specification of the GPU", "--device nvidia.com/gpu=all"),
    }
    hint, option = messages[place.kind]
    assert got.returncode == 8
    assert hint in got.stderr.decode()
    assert option in " ".join(line_of(got.stderr))


@pytest.fixture
def named_by_cdi(place: Place) -> Iterator[None]:
    """A CDI specification of fake GPUs, which only set a variable in the container."""
    if os.geteuid():
        pytest.skip("writing a CDI specification into the engines' folder requires root")
    messages = json.loads(place.docker("info", "--format", "{{json .CDISpecDirs}}")) or ["/var/run/cdi"]
    folder = Path(messages[0])
    made = not folder.exists()
    folder.mkdir(exist_ok=True)
    device = {
        name: {"name": name, "containerEdits": {"env": [f"CDI_{name}=yes"]}} for name in ("all", "0", "1")
    }
    spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": list(device.values())}
    (folder / "torchkiln-test.json").write_text(json.dumps(spec))
    yield
    (folder / "torchkiln-test.json").unlink()
    if made:
        folder.rmdir()


@pytest.mark.parametrize(
    ("gpus", "devices"),
    [("all", ["CDI_all"]), ("2", ["CDI_0", "CDI_1"]), ("device=1", ["CDI_1"]), ("none", [])],
)
@pytest.mark.usefixtures("named_by_cdi")
def test_gpus_by_cdi(place: Place, gpus: str, devices: list[str], shared: Path) -> None:
    """GPUs work together with all other options, and in the command line that `run` prints."""
    shared.chmod(0o755)
    (shared / "f").write_text("bound\n")
    options = ["--gpus", gpus, "-e", "A=b c", "--bind", f"{shared}:/b:ro", "--user", "5:6", "-w", "/etc"]
    options += ["--shm-size", "3m", "-p", "127.0.0.1::80"]
    script = "env; cat /b/f; id -u; id -g; pwd; stat -f -c %b*%S /dev/shm; exit 7"
    got = place.run(*options, "--", "sh", "-c", script)
    lines = got.stdout.decode().splitlines()

    assert got.returncode == 7, got.stderr
    assert sorted(line.removesuffix("=yes") for line in lines if line.startswith("CDI_")) == devices
    assert "A=b c" in lines
    assert "ENTRY=1" in lines
    assert "bound" in lines
    assert lines[-4:-1] == ["5", "6", "/etc"]
    blocks, size = map(int, lines[-1].split("*"))
    assert blocks * size == 3 << 20
    # Podman's client requires a file in the folder of Docker's client.
    environ = {name: value for name, value in place.environ.items() if name != "DOCKER_CONFIG"}
    shown = subprocess.run(line_of(got.stderr), env=environ, capture_output=True, check=False)
    again = shown.stdout.decode().splitlines()
    assert [item for item in again if "CDI_" in item] == [item for item in lines if "CDI_" in item], (
        shown.stderr
    )


@pytest.mark.network  # Compose
@pytest.mark.usefixtures("named_by_cdi")
def test_compose_by_cdi(place: Place, tmp_path: Path) -> None:
    """deploy/compose with compose.cdi.yaml, which replaces NVIDIA's runtime."""
    if place.kind == "podman":
        pytest.skip("Podman ignores Docker's request for GPUs")
    assert place.run("--", "id").returncode == 0  # the image is in the engine
    environ = {**with_compose(place.environ, tmp_path / "docker"), "IMAGE": NAME, "SHM_SIZE": "64m"}
    files = [word for name in ("compose", "compose.cdi") for word in ("-f", f"deploy/compose/{name}.yaml")]
    compose = ["docker", "compose", "-p", f"cdi-{os.getpid()}", *files]
    argv = [*compose, "run", "--rm", "--no-TTY", "jupyter", "env"]
    try:
        done = subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    finally:
        subprocess.run(
            [*compose, "down", "--volumes"], cwd=ROOT, env=environ, capture_output=True, check=True
        )

    assert done.returncode == 0, done.stderr
    assert "CDI_all=yes" in done.stdout.splitlines()


@pytest.mark.usefixtures("named_by_cdi")
def test_a_gpu_that_is_not_in_the_specification(place: Place) -> None:
    got = place.run("--gpus", "device=7", "--", "id")

    assert got.returncode == 8
    assert "hint: create a CDI specification of the GPU" in got.stderr.decode()
