"""The image's metadata, and the messages when a container starts."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.fake_driver import fake_driver
from tests.inside import HOPPER, driver, image, machine
from tests.needs import needs_gcc
from tests.planned import LOCK_DIGEST, locked
from torchkiln.matrix.facts import load as facts
from torchkiln.matrix.gpu_archs import how_served
from torchkiln.plan.plan import IMAGE_JSON, plan
from workplace import driver as module
from workplace import greeting, helping, report
from workplace.driver import Gpu
from workplace.image import load, serves
from workplace.machine import SMALL_SHM
from workplace.settings import SWITCHES

VOLTA = Gpu(name="Tesla V100", capability=(7, 0), memory=16 << 30)
# Faults, and texts that their warnings must contain. Each is tested alone, and all together.
WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "fault": (
        {"fault": "CUDA does not start", "remedy": "restart the host"},
        {},
        ("start", "restart the host"),
    ),
    "old": ({"version": "470.57.02"}, {}, ("470.57.02", "525.60.13", "12.6", "update")),
    "unserved": ({"gpus": (VOLTA, VOLTA, HOPPER)}, {}, ("Tesla V100", "7.0", "sm_80 sm_90", "another torch")),
    "shm": ({}, {"shm": SMALL_SHM}, ("/dev/shm", "64 MiB", "--shm-size")),
    "no shm": ({}, {"shm": 0}, ("/dev/shm", "0 MiB", "--shm-size")),
    "closed": ({}, {"closed": ("/workspace", "/root")}, ("/workspace, /root", "uid")),
}


def warned(in_driver: dict[str, Any], in_machine: dict[str, Any]) -> list[str]:
    """The warnings at the start of a container with these faults."""
    return list(report.warnings(image(), driver(**in_driver), machine(**in_machine)))


def test_without_faults_there_are_no_warnings() -> None:
    assert warned({}, {}) == []
    assert warned({}, {"shm": SMALL_SHM + 1}) == []
    assert warned({"version": "525.60.13"}, {}) == []  # the oldest driver that is new enough


@pytest.mark.parametrize("what", WRONG)
def test_each_fault_is_one_warning(what: str) -> None:
    """Two GPUs of one model together give only one warning."""
    in_driver, in_machine, words = WRONG[what]
    (warning,) = warned(in_driver, in_machine)

    assert [word for word in words if word not in warning] == []
    assert "NVIDIA H100" not in warning


def test_all_faults_are_reported() -> None:
    warning = warned(
        {name: value for found, _, _ in WRONG.values() for name, value in found.items()},
        {name: value for _, found, _ in WRONG.values() for name, value in found.items()},
    )
    assert len(warning) == 5  # /dev/shm is either missing or small


def test_a_container_without_a_gpu_warns_once() -> None:
    """Without a driver there is no version, so nothing is reported as too old."""
    nothing = {"version": "", "cuda": "", "gpus": (), "passed": False, "fault": "no GPU", "remedy": "--gpus"}
    assert warned(nothing, {}) == ["no GPU: --gpus"]


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ((), "none"),
        ((HOPPER,), "NVIDIA H100"),
        ((HOPPER, HOPPER), "2 × NVIDIA H100"),
        ((HOPPER, VOLTA, HOPPER), "2 × NVIDIA H100, Tesla V100"),
    ],
)
def test_gpus_are_counted_by_kind(gpus: tuple[Gpu, ...], expected: str) -> None:
    assert report.gpus(driver(gpus=gpus)) == f"{expected}, driver 580.159.04 (CUDA 13.0)"


def test_unknown_data_of_the_driver_is_not_invented() -> None:
    assert report.gpus(driver(version="")) == "NVIDIA H100, driver unknown (CUDA 13.0)"
    assert report.gpus(driver(version="", cuda="", gpus=())) == "none"


def test_facts_describe_the_machine() -> None:
    gpus, rest = report.facts(driver(), machine(limited=True, cores=1.5, writable=()))
    _, one = report.facts(driver(), machine(cores=1.0))

    assert "NVIDIA H100" in gpus
    for words in ("1.5 cores", "64.0 GiB", "limited", "8.0 GiB", "no folder"):
        assert words in rest
    assert "1 core," in one
    assert "limited" not in one
    assert "/workspace, /tmp" in one


def test_messages_go_to_stderr_with_our_name(capsys: pytest.CaptureFixture[str]) -> None:
    """In a container's log, the prefix distinguishes them from messages of services."""
    report.say("one", "two")

    assert capsys.readouterr() == ("", "torchkiln: one\ntorchkiln: two\n")


@needs_gcc
def test_the_report_is_of_this_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_driver()))
    monkeypatch.setenv("FAKE_CAPABILITY", "70")
    report.machine(image())
    warning = capsys.readouterr().err.splitlines()

    assert "Fake H100, driver 580.159.04" in warning[0]
    assert [line for line in warning if "warning: Fake H100" in line and "7.0" in line]


@needs_gcc
def test_a_shell_starts_with_a_summary_of_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the versions in the image, the GPUs, and their faults."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_driver()))
    monkeypatch.setenv("FAKE_DRIVER", "470.57.02")
    first, gpus, *rest = greeting.text(image()).splitlines()

    for words in ("2.7.1+cu126", "12.1", "12.6", "9.5.1.17", "2.26.2", "3.11.2"):
        assert words in first
    assert "Fake H100, driver 470.57.02" in gpus
    assert any(line.startswith("warning: ") and "525.60.13" in line for line in rest)
    assert "help" in rest[-1]


@needs_gcc
def test_a_shell_does_not_wait_for_a_slow_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning is printed instead. Only the doctor waits longer."""
    assert greeting.DRIVER_TIMEOUT < module.LIMIT
    monkeypatch.setattr(greeting, "DRIVER_TIMEOUT", 0.3)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_driver()))
    monkeypatch.setenv("FAKE_INIT", "late2")

    assert "warning: the NVIDIA driver did not answer" in greeting.text(image())


def test_help_lists_every_variable_with_its_default() -> None:
    warning = helping.text(image())
    rows = [line for line in warning.splitlines() if line.startswith("  ")]

    for names, default in SWITCHES:
        row = next(number for number, line in enumerate(rows) if line.startswith(f"  {names} "))
        assert f"[{default}]" in " ".join(rows[row : row + 2]) or not default
    assert "2.7.1-cuda12.1-cudnn9-runtime" in warning
    assert "525.60.13" in warning


def test_help_fits_80_columns() -> None:
    """The table of settings is the widest part."""
    table = helping.text(image()).partition("NAME=VALUE")[2].partition("\n\n")[0]

    assert max(map(len, table.splitlines())) <= helping.WIDTH


BUILDS = sorted({build.archs for release in facts().releases.values() for build in release.variants})
SERIES = sorted({arch.partition("_")[2] for archs in BUILDS for arch in archs}, key=int)
CAPABILITIES = [(major, minor) for major in range(3, 14) for minor in range(10)]


def ours(archs: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Whether torchkiln's planner counts the GPU as served."""
    return how_served(archs, f"{capability[0]}.{capability[1]}") is not None


def test_image_json_is_read_as_the_build_writes_it(tmp_path: Path) -> None:
    cell = locked()
    written = plan(cell, (), aliases=(), lock_digest=LOCK_DIGEST)
    (data,) = (
        file.data
        for layer in written.layers
        for file in getattr(layer, "files", ())
        if file.path == IMAGE_JSON
    )
    (tmp_path / "image.json").write_bytes(data)
    found, build = load(tmp_path / "image.json"), cell.resolution.build

    assert build
    assert (found.tag, found.torch, found.wheel_cuda) == (written.tag, build.version, build.cuda)
    assert (found.cudnn, found.nccl, found.archs) == (build.cudnn, build.nccl, build.archs)
    assert (found.cuda, found.python) == (cell.resolution.cell.cuda, cell.base.python)
    assert (found.min_driver, found.full_driver) == (cell.resolution.min_driver, cell.resolution.full_driver)
    assert found.wheels == tuple((wheel.name, wheel.version) for wheel in cell.wheels)


def test_unknown_metadata_is_empty(tmp_path: Path) -> None:
    """If CUDA's libraries are inside torch's wheel, the lock may not have their versions."""
    texts = ("tag", "torch", "cuda", "wheel_cuda", "cudnn", "nccl", "python", "min_driver", "full_driver")
    warning = dict.fromkeys(texts, "1") | {"cudnn": None, "archs": [], "wheels": [], "schema": 1}
    (tmp_path / "image.json").write_text(json.dumps(warning))

    assert load(tmp_path / "image.json").cudnn == ""


def test_supported_gpus_match_those_of_the_builder() -> None:
    """The image's program and torchkiln cannot share code. All known builds are compared."""
    differ = [pair for pair in product(BUILDS, CAPABILITIES) if serves(*pair) is not ours(*pair)]

    assert differ == []
    assert len(BUILDS) >= 5


@pytest.mark.parametrize("kind", ["sm", "compute"])
def test_each_arch_separately(kind: str) -> None:
    archs = [(f"{kind}_{series}",) for series in SERIES]

    assert [pair for pair in product(archs, CAPABILITIES) if serves(*pair) is not ours(*pair)] == []


@pytest.mark.parametrize("kind", ["sm", "compute"])
@pytest.mark.parametrize("letter", ["a", "f"])
def test_a_letter_after_an_arch_means_only_that_gpu(kind: str, letter: str) -> None:
    """The planner treats sm_90a like sm_90, because no known wheel has a name with such a letter."""
    for series, capability in product(SERIES, CAPABILITIES):
        archs, own = (f"{kind}_{series}{letter}",), (int(series[:-1]), int(series[-1]))

        assert serves(archs, capability) is (capability == own)
        assert ours(archs, capability) or capability != own


def test_an_invalid_arch_supports_nothing() -> None:
    """A future torch may have unknown names. They are ignored: a traceback would be in every container."""
    assert not serves(("sm_", "sm_next", "", "sm"), (9, 0))
    assert serves(("sm_next", "sm_90"), (9, 0))
