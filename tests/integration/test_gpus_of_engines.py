"""GPUs in Docker and Podman, on a host that has none: refused; by CDI, whose specification sets a variable.

One file, for the specification is seen by every Podman of the host.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.place import Place, line_of, place, shared
from tests.needs import without_gpus

__all__ = ["place", "shared"]


@without_gpus
def test_gpus_where_the_engine_has_none(place: Place) -> None:
    """Not asked for by themselves; asked for by the user, refused with what to do."""
    assert "--gpus" not in line_of(place.run("--", "id").stderr)
    got = place.run("--gpus", "all", "--", "id")
    told = {
        "docker": ("hint: the engine does not support GPUs", "--gpus all"),
        "podman": ("hint: create a CDI specification of the GPU", "--device nvidia.com/gpu=all"),
    }
    hint, option = told[place.kind]
    assert got.returncode == 8
    assert hint in got.stderr.decode()
    assert option in " ".join(line_of(got.stderr))


@pytest.fixture
def named_by_cdi(place: Place) -> Iterator[None]:
    """A specification of GPUs that are none, where the engine looks: who gets one finds a variable."""
    if os.geteuid():
        pytest.skip("a specification of GPUs is put where engines look, which takes root")
    told = json.loads(place.docker("info", "--format", "{{json .CDISpecDirs}}")) or ["/var/run/cdi"]
    folder = Path(told[0])
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
    ("gpus", "seen"), [("all", ["CDI_all"]), ("2", ["CDI_0", "CDI_1"]), ("device=1", ["CDI_1"]), ("none", [])]
)
@pytest.mark.usefixtures("named_by_cdi")
def test_gpus_by_cdi(place: Place, gpus: str, seen: list[str], shared: Path) -> None:
    """With all else that a container is asked for, and by the line that is shown as well."""
    shared.chmod(0o755)
    (shared / "f").write_text("bound\n")
    asked = ["--gpus", gpus, "-e", "A=b c", "--bind", f"{shared}:/b:ro", "--user", "5:6", "-w", "/etc"]
    asked += ["--shm-size", "3m", "-p", "127.0.0.1::80"]
    script = "env; cat /b/f; id -u; id -g; pwd; stat -f -c %b*%S /dev/shm; exit 7"
    got = place.run(*asked, "--", "sh", "-c", script)
    lines = got.stdout.decode().splitlines()

    assert got.returncode == 7, got.stderr
    assert sorted(line.removesuffix("=yes") for line in lines if line.startswith("CDI_")) == seen
    assert "A=b c" in lines
    assert "ENTRY=1" in lines
    assert "bound" in lines
    assert lines[-4:-1] == ["5", "6", "/etc"]
    blocks, size = map(int, lines[-1].split("*"))
    assert blocks * size == 3 << 20
    # Podman's client wants a file in the folder that Docker's is led to.
    environ = {name: value for name, value in place.environ.items() if name != "DOCKER_CONFIG"}
    shown = subprocess.run(line_of(got.stderr), env=environ, capture_output=True, check=False)
    again = shown.stdout.decode().splitlines()
    assert [one for one in again if "CDI_" in one] == [one for one in lines if "CDI_" in one], shown.stderr


@pytest.mark.usefixtures("named_by_cdi")
def test_a_gpu_that_the_specification_has_not(place: Place) -> None:
    got = place.run("--gpus", "device=7", "--", "id")

    assert got.returncode == 8
    assert "hint: create a CDI specification of the GPU" in got.stderr.decode()
