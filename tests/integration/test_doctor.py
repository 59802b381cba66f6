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

pytestmark = [pytest.mark.network, needs_gcc]  # wheels, and where the cache has none, the base

ANYBODY = ("--user", "12345:12345", "--cap-drop", "ALL")


@pytest.fixture
def driver(shared: Path) -> list[str]:
    """Mounts a driver that answers what FAKE_* variables say, where GKE mounts the real one."""
    for library in fake_driver().iterdir():
        shutil.copy(library, shared)
    shared.chmod(0o755)
    return ["--volume", f"{shared}:/usr/local/nvidia/lib64:ro"]


def examined(workplace: Workplace, *options: str) -> tuple[int, Mapping[str, Mapping[str, str]]]:
    """Its exit code, and its lines by what they are about."""
    ran = workplace.run(*options, command=["doctor", "--json"])
    assert ran.stderr == ""
    return ran.returncode, {line["about"]: line for line in json.loads(ran.stdout)["lines"]}


@pytest.mark.parametrize("options", [(), ANYBODY], ids=["root", "anybody"])
def test_without_a_gpu(workplace: Workplace, options: tuple[str, ...]) -> None:
    """Told, with what to do; no reason to fail, but that this slim image lacks cuDNN's library."""
    code, lines = examined(workplace, *options)

    assert (lines["driver"]["state"], lines["GPUs"]["state"]) == ("warning", "warning")
    assert "--gpus all" in lines["driver"]["remedy"]
    assert "--shm-size=8g" in lines["/dev/shm"]["remedy"]
    for about in ("image", "memory", "compiler", "files", "user", "time", "services", "torch"):
        assert lines[about]["state"] == "ok", lines[about]
    assert [name for name, line in lines.items() if line["state"] == "problem"] == ["cuDNN"]
    assert code == 1


def test_with_a_good_one(workplace: Workplace, driver: list[str]) -> None:
    """As any user."""
    _, lines = examined(workplace, *driver, *ANYBODY, "-e", "FAKE_GPUS=2", "--shm-size", "1g")

    assert (lines["driver"]["state"], lines["GPUs"]["state"], lines["/dev/shm"]["state"]) == ("ok",) * 3
    assert "580.159.04, supports CUDA up to 13.0; this image needs 525.60.13" in lines["driver"]["found"]
    assert "Fake H100, Fake H200" in lines["GPUs"]["found"]
    assert "9.0 is supported" in lines["GPUs"]["found"]
    assert "shared memory" in lines["NCCL"]["found"]


BROKEN = {
    "FAKE_INIT=803": ("driver", "driver and library version mismatch", "reboot the host"),
    "FAKE_INIT=802": ("driver", "system not yet initialized", "nvidia-fabricmanager"),
    "FAKE_INIT=999": ("driver", "error 999", "dmesg"),
    "FAKE_INIT=100": ("driver", "no CUDA-capable device", "--gpus all"),
    "FAKE_INIT=crash": ("driver", "SIGSEGV", "dmesg"),
    "FAKE_DRIVER=470.57.02": ("driver", "supports CUDA up to 13.0; this image needs driver 525", "update"),
    "FAKE_CAPABILITY=35": ("GPUs", "Fake H100 (3.5): not supported by this torch", "another torch"),
    "FAKE_CAPABILITY=120": ("GPUs", "Fake H100 (12.0)", "another torch"),
}


@pytest.mark.parametrize("told", BROKEN)
def test_what_is_wrong_with_a_driver(workplace: Workplace, driver: list[str], told: str) -> None:
    """Each kind has its line, a remedy, and the exit code of a problem."""
    about, found, remedy = BROKEN[told]
    code, lines = examined(workplace, *driver, "-e", told)

    assert (code, lines[about]["state"]) == (1, "problem")
    assert found in lines[about]["found"]
    assert remedy in lines[about]["remedy"]


def test_the_start_warns_of_it(workplace: Workplace, driver: list[str]) -> None:
    """With both versions; and goes on, for the CPU is there."""
    options = (*driver, "-e", "FAKE_DRIVER=470.57.02", "-e", "FAKE_CAPABILITY=35")
    with workplace.started(*options) as container:
        container.says(r"GPUs: Fake H100, driver 470\.57\.02 \(CUDA 13\.0\)")
        container.says(r"warning: driver 470\.57\.02 is too old: this image \(CUDA 12\.4\) needs 525\.60\.13")
        container.says(r"warning: Fake H100 \(compute capability 3\.5\) is not supported by torch 2\.6\.0")
        container.says("is running at")


def test_a_driver_that_hangs_keeps_nobody_waiting(workplace: Workplace, driver: list[str]) -> None:
    with workplace.started(*driver, "-e", "FAKE_INIT=hang") as container:
        container.says("is running at")
        assert "GPUs:" not in container.logs()
        container.docker("stop", "--time", "10", container.name)
        assert container.code() == 0


def test_services_are_examined_where_they_run(workplace: Workplace) -> None:
    """By `docker exec`, in words; a service that does not answer is a problem."""
    with workplace.started() as container:
        container.serves()
        doctor = ("exec", container.name, "/opt/torchkiln/entrypoint", "doctor")
        assert "ok       jupyter    running" in container.docker(*doctor, check=False).stdout
        container.inside("pkill", "-STOP", "-f", "jupyter-lab")

        done = container.docker(*doctor, check=False)
        assert "problem  jupyter    port 8888: " in done.stdout
        assert done.returncode == 1


def test_a_mistyped_option(workplace: Workplace) -> None:
    ran = workplace.run(command=["doctor", "--jsn"])

    assert (ran.returncode, "--jsn" in ran.stderr) == (2, True)
