"""Queries of compiled fake drivers, which work, fail, crash, hang, or are missing."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from tests import inside
from tests.fake_driver import fake_driver, has_libcuda
from tests.inside import dev
from tests.needs import needs_gcc
from workplace import driver as module
from workplace.driver import Driver, Gpu, ask, too_old, unserved

ASK = "import dataclasses, json, workplace.driver as d; print(json.dumps(dataclasses.asdict(d.ask())))"
# The last part is never 0: NVIDIA's programs treat 570.26 and 570.26.0 as different versions.
VERSIONS = st.tuples(st.integers(1, 999), st.integers(0, 200), st.integers(1, 99)).map(
    lambda parts: "{}.{:02}.{:02}".format(*parts)
)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that queries the fake driver with the given settings, such as INIT="100"."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_driver()))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def driver_with(**fake: str) -> Driver:
        for name, value in fake.items():
            monkeypatch.setenv(f"FAKE_{name}", value)
        return ask()

    return driver_with


@needs_gcc
def test_a_driver_that_works(answers: Any) -> None:
    assert answers() == Driver(
        version="580.159.04",
        cuda="13.0",
        gpus=(Gpu(name="Fake H100", capability=(9, 0), memory=80 << 30),),
        links=(),
        passed=True,
        fault="",
        remedy="",
    )


@needs_gcc
@pytest.mark.parametrize(
    ("fake", "link"), [({"NVLINKS": "18"}, "NVLINK"), ({"WAY": "20"}, "PXB"), ({"WAY": "50"}, "SYS")]
)
def test_several_gpus_and_their_connections(answers: Any, fake: dict[str, str], link: str) -> None:
    found = answers(GPUS="3", **fake)

    assert [gpu.name for gpu in found.gpus] == ["Fake H100", "Fake H200", "Fake H300"]
    assert found.links == (link,) * 3


@needs_gcc
def test_a_driver_without_its_management_library_works(answers: Any) -> None:
    """Its version is unknown then, so it is not reported as too old."""
    found = answers(NVML="9", GPUS="2")

    assert (found.version, found.cuda, found.links, found.fault) == ("", "13.0", (), "")
    assert len(found.gpus) == 2
    assert not too_old(found, "999.0")


@needs_gcc
@pytest.mark.parametrize("code", ["34", "100", "101", "222", "802", "803", "804", "999", "205"])
def test_each_initialisation_error_is_reported_with_a_remedy(answers: Any, code: str) -> None:
    """The message also has CUDA's error number, because people search for it."""
    found = answers(INIT=code)

    assert code in found.fault
    assert found.remedy
    assert (found.gpus, found.passed, found.version) == ((), True, "580.159.04")


@needs_gcc
@pytest.mark.parametrize(
    ("code", "fault", "remedy"),
    [
        ("100", "no CUDA-capable device", "--gpus all"),
        ("802", "system not yet initialized", "nvidia-fabricmanager"),
        ("803", "driver and library version mismatch", "reboot the host"),
        ("999", "error 999", "dmesg"),
        ("crash", "SIGSEGV", "dmesg"),
    ],
)
def test_the_message_of_a_fault_and_its_remedy(answers: Any, code: str, fault: str, remedy: str) -> None:
    """Those of docs/troubles.md."""
    found = answers(INIT=code)

    assert fault in found.fault
    assert remedy in found.remedy


@needs_gcc
@pytest.mark.parametrize("visible", ["", "-1", "7"])
def test_gpus_that_a_variable_hides(answers: Any, visible: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's error is the same as without GPUs, but --gpus would be the wrong remedy."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert "CUDA_VISIBLE_DEVICES" in answers(INIT="100").remedy
    assert "CUDA_VISIBLE_DEVICES" in answers(INIT="0", GPUS="0").remedy


@needs_gcc
@pytest.mark.parametrize("library", ["INIT", "NVML"])
@pytest.mark.parametrize(("how", "words"), [("crash", "SIGSEGV"), ("hang", "did not answer")])
def test_a_driver_that_crashes_or_hangs(
    answers: Any, library: str, how: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "hang":
        monkeypatch.setattr(module, "LIMIT", 0.5)
    found = answers(**{library: how})

    assert words in found.fault
    assert (found.gpus, found.passed) == ((), True)
    assert found.remedy


@needs_gcc
def test_with_a_short_timeout_a_slow_driver_counts_as_hung(
    answers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_INIT", "late2")

    assert "did not answer" in ask(0.3).fault


@needs_gcc
@pytest.mark.parametrize("status", ["0", "3"])
def test_a_driver_that_exits_without_output(answers: Any, status: str) -> None:
    """A query without output must not count as a working driver."""
    found = answers(INIT=f"exit{status}")

    assert found.fault
    assert found.remedy


@needs_gcc
def test_a_library_without_the_functions_of_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that is no driver has the name libcuda.so.1."""
    shutil.copy(fake_driver() / "libnvidia-ml.so.1", tmp_path / "libcuda.so.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))

    assert "cuDriverGetVersion" in ask().fault


@pytest.mark.skipif(has_libcuda(), reason="this machine has a driver")
def test_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The container has no GPUs, which may be intended."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    found = json.loads(inside.python(ASK, before=dev(tmp_path)))

    assert not found["passed"]
    assert "--gpus" in found["remedy"]
    assert found | {"fault": "", "remedy": ""} == json.loads(
        json.dumps(asdict(inside.driver(version="", cuda="", gpus=(), passed=False)))
    )


@pytest.mark.skipif(has_libcuda(), reason="this machine has a driver")
def test_a_gpu_without_libcuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's container toolkit mounts no libcuda if only the driver capability `utility` is requested."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    found = json.loads(inside.python(ASK, before=dev(tmp_path, "nvidia0", "nvidiactl")))

    assert found["passed"]
    assert "libcuda.so.1" in found["fault"]
    assert "NVIDIA_DRIVER_CAPABILITIES" in found["remedy"]


@given(VERSIONS, VERSIONS)
def test_versions_are_compared_as_numbers(version: str, needed: str) -> None:
    """525.9 is older than 525.60. The results are compared with those of another implementation."""
    assert too_old(inside.driver(version=version), needed) is (Version(version) < Version(needed))


@pytest.mark.parametrize(("version", "needed"), [("", "525.60.13"), ("470.1", ""), ("", "")])
def test_an_unknown_version_is_not_too_old(version: str, needed: str) -> None:
    assert not too_old(inside.driver(version=version), needed)


@needs_gcc
def test_gpus_without_code_in_torch(answers: Any) -> None:
    found = answers(GPUS="2", CAPABILITY="70")

    assert unserved(found, inside.image(archs=("sm_80", "compute_90"))) == found.gpus
    assert unserved(found, inside.image(archs=("sm_70", "sm_80"))) == ()


def test_only_unsupported_gpus_are_named() -> None:
    old = Gpu(name="Tesla V100", capability=(7, 0), memory=16 << 30)

    assert unserved(inside.driver(gpus=(inside.HOPPER, old)), inside.image()) == (old,)
