"""`doctor` and the start's warnings, with drivers that are absent, broken or old (simulated)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.engine.place import shared
from tests.fake_driver import fake_driver
from tests.needs import needs_gcc
from tests.workplace import Workplace

__all__ = ["shared"]

pytestmark = [pytest.mark.network, needs_gcc]  # wheels, and if it is not cached, the base

ANY_USER = ("--user", "12345:12345", "--cap-drop", "ALL")


@pytest.fixture
def driver(shared: Path) -> list[str]:
    """Mount a fake driver, set by FAKE_* variables, where GKE mounts the real one."""
    for library in fake_driver().iterdir():
        shutil.copy(library, shared)
    shared.chmod(0o755)
    return ["--volume", f"{shared}:/usr/local/nvidia/lib64:ro"]


def examined(workplace: Workplace, *options: str) -> tuple[int, Mapping[str, Mapping[str, str]]]:
    """The exit code of `doctor`, and its lines by subject."""
    ran = workplace.run(*options, command=["doctor", "--json"])
    assert ran.stderr == ""
    return ran.returncode, {line["about"]: line for line in json.loads(ran.stdout)["lines"]}


@pytest.mark.parametrize("options", [(), ANY_USER], ids=["root", "any user"])
def test_without_a_gpu(workplace: Workplace, options: tuple[str, ...]) -> None:
    """A missing GPU is reported with a hint, but is no error. The only error is the slim image's cuDNN."""
    code, lines = examined(workplace, *options)

    assert (lines["driver"]["state"], lines["GPUs"]["state"]) == ("warning", "warning")
    assert "--gpus all" in lines["driver"]["remedy"]
    assert "--shm-size=8g" in lines["/dev/shm"]["remedy"]
    for about in ("image", "memory", "compiler", "files", "user", "time", "services", "torch"):
        assert lines[about]["state"] == "ok", lines[about]
    assert [name for name, line in lines.items() if line["state"] == "problem"] == ["cuDNN"]
    assert code == 1


def test_with_a_working_driver(workplace: Workplace, driver: list[str]) -> None:
    """`doctor` finds driver and GPU, for root and for other users."""
    _, lines = examined(workplace, *driver, *ANY_USER, "-e", "FAKE_GPUS=2", "--shm-size", "1g")

    assert (lines["driver"]["state"], lines["GPUs"]["state"], lines["/dev/shm"]["state"]) == ("ok",) * 3
    assert "580.159.04, supports CUDA up to 13.0; this image needs 525.60.13" in lines["driver"]["found"]
    assert "Fake H100, Fake H200" in lines["GPUs"]["found"]
    assert "9.0 is supported" in lines["GPUs"]["found"]
    assert "shared memory" in lines["NCCL"]["found"]


def test_a_driver_that_hangs_does_not_block(workplace: Workplace, driver: list[str]) -> None:
    with workplace.started(*driver, "-e", "FAKE_INIT=hang") as container:
        container.says("is running at")
        assert "GPUs:" not in container.logs()
        container.docker("stop", "--time", "10", container.name)
        assert container.code() == 0


def test_services_are_examined_where_they_run(workplace: Workplace) -> None:
    """`docker exec` runs doctor; it reports a service that does not answer as a problem."""
    with workplace.started() as container:
        container.serves()
        doctor = ("exec", container.name, "/opt/torchkiln/entrypoint", "doctor")
        assert "ok       jupyter    running" in container.docker(*doctor, check=False).stdout
        container.inside("pkill", "-STOP", "-f", "jupyter-lab")

        done = container.docker(*doctor, check=False)
        assert "problem  jupyter    port 8888: " in done.stdout
        assert done.returncode == 1


@pytest.fixture
def thin(workplace: Workplace, shared: Path) -> list[str]:
    """Options that mount the image.json of a thin image for capability 9.0."""
    facts = workplace.run(command=["cat", "/etc/torchkiln/image.json"]).stdout
    assert '\n  "archs": ' in facts
    place = shared / "image.json"
    place.write_text(facts.replace('\n  "archs": ', '\n  "gpus": ["9.0"],\n  "archs": '))
    place.chmod(0o644)
    return ["--volume", f"{place}:/etc/torchkiln/image.json:ro"]


@pytest.mark.parametrize("command", [(), ("python", "-c", "print('ran')"), ("pip", "--version")])
@pytest.mark.parametrize("options", [(), ANY_USER], ids=["root", "any user"])
def test_an_image_for_other_gpus_starts_nothing(
    workplace: Workplace,
    driver: list[str],
    thin: list[str],
    command: tuple[str, ...],
    options: tuple[str, ...],
) -> None:
    """The user's program does not start: one message, and a distinct exit code."""
    ran = workplace.run(*driver, *thin, *options, "-e", "FAKE_CAPABILITY=80", command=command)

    assert (ran.returncode, ran.stdout) == (3, "")
    first, second = ran.stderr.splitlines()
    assert "compute capability 9.0 only, and no GPU here can run it: Fake H100 (8.0)" in first
    assert "use the image for all GPUs: 2.6.0-cuda12.1-cudnn9-runtime;" in second
