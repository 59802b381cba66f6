"""The doctor in images: each state of each line, in environments with one fault; its exit code."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.inside import HOPPER, Place, driver, image, machine, place, says
from tests.needs import needs_gcc
from workplace import checks, health
from workplace.checks import Line
from workplace.driver import Gpu
from workplace.machine import SMALL_SHM
from workplace.supervision import Service

__all__ = ["place"]

VOLTA = Gpu(name="Tesla V100", capability=(7, 0), memory=16 << 30)
ORDER = (
    *("image", "driver", "GPUs", "/dev/shm", "memory", "NCCL", "cuDNN", "torch", "compiler"),
    *("files", "user", "services", "time"),
)
SHOWN = re.compile(r"(ok|warning|problem) +(\S+(?: \S+)*?) +(.*)")


@pytest.fixture
def compiler(place: Place, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that replaces cc by a shell script."""

    def put(script: str) -> None:
        place.program("cc", script)

    monkeypatch.setenv("PATH", f"{place.folder / 'bin'}:/usr/bin:/bin")
    return put


def line(about: str, *, of_image: Any = None, of_driver: Any = None, of_machine: Any = None) -> Line:
    """The doctor's line about the subject *about*, in an environment with these faults."""
    found = checks.run_all(image(**of_image or {}), driver(**of_driver or {}), machine(**of_machine or {}))
    # A missing GPU has its remedy in the line about the driver.
    assert [
        entry for entry in found if entry.state != "ok" and not entry.remedy and entry.about != "GPUs"
    ] == []
    (doctor_line,) = (entry for entry in found if entry.about == about)
    return doctor_line


@needs_gcc
def test_in_a_valid_image_every_line_is_ok(place: Place) -> None:
    """There is a line for each subject, always in the same order."""
    found = checks.run_all(image(), driver(), machine())
    assert [entry for entry in found if entry.state != "ok" or entry.remedy] == []
    assert tuple(entry.about for entry in found) == ORDER
    assert all(entry.found for entry in found)


@pytest.mark.parametrize(
    ("trouble", "state", "words"),
    [
        ({"fault": "no GPU", "remedy": "--gpus", "passed": False}, "warning", ("no GPU",)),
        ({"fault": "it crashed", "remedy": "dmesg"}, "problem", ("it crashed",)),
        ({"version": "470.57.02"}, "problem", ("470.57.02", "525.60.13")),
        ({"version": "525.60.13"}, "ok", ("compatibility", "560.35.05")),
        ({"version": "560.35.04"}, "ok", ("compatibility", "560.35.05")),
        ({"version": "560.35.05"}, "ok", ("525.60.13", "13.0")),
        ({"version": "", "cuda": ""}, "ok", ("unknown",)),
    ],
)
def test_the_driver(place: Place, trouble: dict[str, Any], state: str, words: tuple[str, ...]) -> None:
    doctor_line = line("driver", of_driver=trouble)
    assert doctor_line.state == state
    assert [word for word in words if word not in doctor_line.found] == []
    assert ("compatibility" in doctor_line.found) is ("compatibility" in words)
    assert trouble.get("remedy", doctor_line.remedy) == doctor_line.remedy


@pytest.mark.parametrize(
    ("gpus", "state", "words"),
    [
        ((HOPPER, HOPPER), "ok", ("2 × NVIDIA H100", "80.0 GiB + 80.0 GiB", "9.0")),
        ((), "warning", ("none",)),
        ((HOPPER, VOLTA), "problem", ("Tesla V100 (7.0)", "sm_80 sm_90")),
    ],
)
def test_gpus(place: Place, gpus: tuple[Gpu, ...], state: str, words: tuple[str, ...]) -> None:
    doctor_line = line("GPUs", of_driver={"gpus": gpus})
    assert doctor_line.state == state
    assert [word for word in words if word not in doctor_line.found] == []
    assert state == "ok" or "H100" not in doctor_line.found


@pytest.mark.parametrize(
    ("shm", "state"), [(0, "warning"), (SMALL_SHM, "warning"), (SMALL_SHM + 1, "ok"), (8 << 30, "ok")]
)
def test_shared_memory(place: Place, shm: int, state: str) -> None:
    doctor_line = line("/dev/shm", of_machine={"shm": shm})
    assert doctor_line.state == state
    assert ("--shm-size" in doctor_line.remedy) is (state == "warning")


@pytest.mark.parametrize("limited", [True, False])
def test_memory_is_shown_with_its_source(place: Place, limited: bool) -> None:
    doctor_line = line("memory", of_machine={"limited": limited, "cores": 1.5})
    assert ("limit" in doctor_line.found) is limited
    assert "64.0 GiB" in doctor_line.found
    assert "1.5 cores" in doctor_line.found


def test_connections_between_gpus(place: Place) -> None:
    """The line has each connection that NCCL could use; the fastest is first."""
    (place.system / "dev/infiniband").mkdir(parents=True)
    (place.system / "dev/infiniband/uverbs0").write_text("")
    doctor_line = line("NCCL", of_driver={"links": ("NVLINK", "SYS", "NVLINK")})
    assert doctor_line.state == "ok"
    assert re.findall("NVLINK|SYS|shared memory|InfiniBand|eth0|lo", doctor_line.found) == [
        *("NVLINK", "SYS", "shared memory", "InfiniBand", "eth0")
    ]
    assert "2 × NVLINK" in doctor_line.found


def test_no_connection_between_gpus(place: Place) -> None:
    """The container has no network, and the default size of shared memory."""
    (place.system / "sys/class/net/eth0").unlink()
    assert line("NCCL", of_machine={"shm": SMALL_SHM}).state == "warning"
    assert line("NCCL").state == "ok"
    assert "InfiniBand" not in line("NCCL").found


@pytest.mark.parametrize("library", ["torch/lib/libcudnn.so.8", "nvidia/cudnn/lib/libcudnn.so.9"])
def test_cudnn_is_in_one_of_two_wheels(place: Place, library: str) -> None:
    (place.site / "nvidia/cudnn/lib/libcudnn.so.9").unlink()
    doctor_line = line("cuDNN")
    (place.site / library).parent.mkdir(parents=True, exist_ok=True)
    (place.site / library).write_text("")
    assert doctor_line.state == "problem"
    assert "9.5.1.17" in doctor_line.found
    assert line("cuDNN") == Line(about="cuDNN", state="ok", found="9.5.1.17")


@pytest.mark.parametrize("guard", ["/etc/torchkiln/constraints.txt", ""])
def test_unchanged_torch(place: Place, guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONSTRAINT", guard)
    doctor_line = line("torch")
    assert doctor_line.state == "ok"
    assert ("kept by PIP_CONSTRAINT" in doctor_line.found) is bool(guard)


def replaced(place: Place, name: str, version: str | None) -> None:
    """Install another *version* of the package in its place, or remove the package if *version* is None."""
    for metadata in place.site.glob(f"{name}-*.dist-info/METADATA"):
        metadata.unlink()
        metadata.parent.rmdir()
    if version:
        place.install(name, version)


@pytest.mark.parametrize(
    ("version", "found"), [("2.9.0", "torch 2.9.0 instead of 2.7.1"), (None, "torch missing")]
)
def test_another_torch(place: Place, version: str | None, found: str) -> None:
    """pip has replaced torch; packages that depend on it may still work."""
    replaced(place, "torch", version)
    doctor_line = line("torch")
    assert doctor_line.state == "warning"
    assert found in doctor_line.found
    assert "nccl" not in doctor_line.found


@pytest.mark.parametrize("name", ["torchvision", "triton", "nvidia-nccl-cu12", "cuda-bindings"])
def test_another_version_of_a_library_of_torch(place: Place, name: str) -> None:
    """Versions are compared with those in image.json. The metadata folder's spelling makes no difference."""
    proved = tuple(
        (entry, "1.0") for entry in ("torch", "torchvision", "triton", "nvidia-nccl-cu12", "cuda-bindings")
    )
    for entry, version in proved:
        replaced(place, entry.replace("-", "_"), version)
    sound = line("torch", of_image={"wheels": proved})
    replaced(place, name.replace("-", "_"), "2.0")
    doctor_line = line("torch", of_image={"wheels": proved})
    assert (sound.state, doctor_line.state) == ("ok", "warning")
    assert f"{name} 2.0 instead of 1.0" in doctor_line.found


def test_another_numpy_is_not_an_error(place: Place) -> None:
    place.install("numpy", "1.26.4")
    assert line("torch").state == "ok"


def test_leftovers_of_an_interrupted_uninstall_are_ignored(place: Place) -> None:
    """Before pip deletes a package, it gives the folders another name."""
    place.install("torch", "2.6.0")
    (place.site / "torch-2.6.0.dist-info").rename(place.site / "~orch-2.6.0.dist-info")
    (place.site / "other-1.0.dist-info").mkdir()
    assert line("torch").state == "ok"


def test_a_package_without_metadata_is_absent(place: Place) -> None:
    (place.site / "torch-2.7.1.dist-info/METADATA").unlink()
    assert "torch missing" in line("torch").found


@needs_gcc
def test_a_compiler_that_works(place: Place) -> None:
    doctor_line = line("compiler")
    assert doctor_line.state == "ok"
    assert re.fullmatch(r"gcc \d+(\.\d+)*", doctor_line.found)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo first >&2; echo 'cc1: no such file' >&2; exit 1", "cc1: no such file"),
        ("exit 3", "3"),
        ("""while [ "$1" != -o ]; do shift; done; echo 'exit 0' >"$2" """, "Permission denied"),
        ("""while [ "$1" != -o ]; do shift; done; printf '#!/bin/sh\\nexit 9' >"$2"; chmod +x "$2" """, "9"),
    ],
    ids=["refuses", "fails without output", "noexec", "makes a program that does not run"],
)
def test_a_compiler_that_fails(
    place: Place, compiler: Callable[[str], None], script: str, words: str
) -> None:
    compiler(script)
    doctor_line = line("compiler")
    assert doctor_line.state == "problem"
    assert words in doctor_line.found
    assert "first" not in doctor_line.found


def test_no_compiler(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(place.folder))
    doctor_line = line("compiler")
    assert doctor_line.state == "problem"
    assert "cc" in doctor_line.found


def test_a_compiler_that_hangs(
    place: Place, compiler: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, the compiler is on a network file system whose server is down."""
    monkeypatch.setattr(checks, "_TIMEOUT", 0.2)
    compiler("exec sleep 600")
    assert line("compiler").state == "problem"


def test_files(place: Place) -> None:
    shut = line("files", of_machine={"closed": ("/workspace",), "writable": ("/tmp",)})
    free = line("files")
    assert (shut.state, free.state) == ("warning", "ok")
    assert "/workspace" in shut.found
    assert str(os.getuid()) in shut.found
    assert "/workspace" in free.found


@pytest.mark.parametrize("home", ["/workspace", None])
def test_a_uid_without_a_name(place: Place, home: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 987654321)
    monkeypatch.delenv("HOME")
    if home:
        monkeypatch.setenv("HOME", home)
    doctor_line = line("user")
    assert doctor_line.state == "warning"
    assert "987654321" in doctor_line.found
    assert (home or "not set") in doctor_line.found
    assert "/opt/torchkiln/entrypoint" in doctor_line.remedy


def test_each_service_has_a_line(place: Place) -> None:
    """The services have lines instead of the line `services`, in the order in which they were started."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    stopped = Service(name="jupyter", command=("a",), environ={}, port=port, path="/api")
    health.expect(place.run, [stopped])
    doctor_line = line("jupyter")
    assert doctor_line.state == "problem"
    assert str(port) in doctor_line.found
    assert "services" not in [entry.about for entry in checks.run_all(image(), driver(), machine())]


def test_a_service_that_answers(place: Place) -> None:
    with says(b"SSH-2.0-OpenSSH_9.2\r\n") as port:
        health.expect(place.run, [Service(name="sshd", command=("a",), environ={}, port=port, path=None)])
        assert line("sshd") == Line(about="sshd", state="ok", found="running")


def test_a_disabled_service_is_off(place: Place) -> None:
    """This is no fault, even if the service also lacks an authorized key."""
    with says(b"SSH-2.0-OpenSSH_9.2\r\n") as port:
        health.expect(place.run, [Service(name="board", command=("a",), environ={}, port=port, path=None)])
        found = {entry.about: entry.found for entry in checks.run_all(image(), driver(), machine())}
    assert (found["jupyter"], found["sshd"], found["board"]) == ("off", "off", "running")


def test_a_clock_that_is_slow(place: Place) -> None:
    """With such a clock, certificates would seem not to be valid yet."""
    later = place.facts.stat().st_mtime + 86400
    os.utime(place.facts, (later, later))
    doctor_line = line("time")
    assert doctor_line.state == "problem"
    assert "clock" in doctor_line.remedy


def test_the_time_zone_is_shown(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.time, "tzname", ("CET", "CEST"))
    assert "CET" in line("time").found
