"""The package in images as a program: its commands, the doctor, and what it finds on the machine."""

from __future__ import annotations

import ast
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests import inside
from tests.fake_driver import fake_driver
from tests.inside import PACKAGE, Place, dev, place
from tests.needs import needs_gcc
from tests.unit.test_workplace_doctor import ORDER, SHOWN
from workplace import doctor, machine
from workplace.machine import look, size, writable

__all__ = ["place"]

HAS = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
CORES = len(os.sched_getaffinity(0))
LOOK = "import dataclasses, json, workplace.machine as m; print(json.dumps(dataclasses.asdict(m.look())))"


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
@pytest.mark.parametrize(
    ("content", "limit"),
    [("268435456\n", 1 << 28), ("max\n", None), ("9223372036854771712\n", None), ("", None)],
)
def test_memory_is_the_limit_or_the_hosts(name: str, content: str, limit: int | None, tmp_path: Path) -> None:
    """cgroup version 1 writes a very large number if there is no limit."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)

    assert machine._memory(tmp_path) == ((limit, True) if limit else (HAS, False))


@pytest.mark.parametrize(
    ("content", "cores"),
    [("50000 100000\n", 0.5), ("max 100000\n", CORES), ("99900000 100000\n", CORES), ("", CORES)],
)
def test_cores_are_the_quota_or_the_affinity(content: str, cores: float, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(content)

    assert machine._cores(tmp_path) == cores


def test_without_cgroups_there_are_no_limits(tmp_path: Path) -> None:
    assert machine._memory(tmp_path) == (HAS, False)
    assert machine._cores(tmp_path) == CORES


def test_shared_memory_is_measured(tmp_path: Path) -> None:
    """For example, engines give a container a /dev/shm of 64 MiB by default."""
    found = json.loads(inside.python(LOOK, before=dev(tmp_path, shm="64m")))

    assert found["shm"] == machine.SMALL_SHM


def test_inaccessible_shared_memory_counts_as_none(tmp_path: Path) -> None:
    assert machine._shm(tmp_path / "absent") == 0


def test_folders_are_writable_if_a_file_can_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order is: working folder, home, /tmp. A folder that is two of them is checked once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "absent"))
    found = look()
    monkeypatch.setenv("HOME", str(tmp_path))
    at_home = look()

    assert (found.writable, found.closed) == ((str(tmp_path), "/tmp"), (str(tmp_path / "absent"),))
    assert (at_home.writable, at_home.closed) == ((str(tmp_path), "/tmp"), ())
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_system_is_not_writable_for_root() -> None:
    """The system call access(2) would report that root can write."""
    assert not writable("/proc/self")


@given(st.integers(0, 1 << 50))
@example(1 << 30)
@example((1 << 30) - 1)
def test_sizes_are_shown_in_readable_units(count: int) -> None:
    """A size is rounded to a tenth of a GiB, or to a MiB."""
    number, unit = size(count).split()
    unit_bytes = {"MiB": 1 << 20, "GiB": 1 << 30}[unit]

    assert abs(float(number) * unit_bytes - count) <= (unit_bytes if unit == "MiB" else 0.05 * unit_bytes + 1)
    assert (unit == "GiB") is (count >= 1 << 30)


@pytest.fixture
def fake(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_driver()))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@needs_gcc
@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("answers", "broken", "last"),
    [
        ({}, 0, "no problems"),
        ({"FAKE_DRIVER": "470.57.02"}, 1, "1 problem"),
        ({"FAKE_DRIVER": "470.57.02", "FAKE_CAPABILITY": "70"}, 2, "2 problems"),
        ({"FAKE_INIT": "999"}, 1, "1 problem"),
    ],
)
def test_problems_are_the_exit_code(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    answers: dict[str, str],
    broken: int,
    last: str,
) -> None:
    """Warnings, for example of a small /dev/shm, do not count. Text and JSON agree."""
    for name, value in answers.items():
        monkeypatch.setenv(name, value)
    codes = (doctor.main([]), doctor.main(["--json"]))
    captured = capsys.readouterr()
    text, _, rest = captured.out.partition("{")
    content = json.loads("{" + rest)

    assert codes == (int(bool(broken)),) * 2
    assert captured.err == ""
    assert text.splitlines()[-1] == last
    assert content["image"] == "2.7.1-cuda12.1-cudnn9-runtime"
    assert (
        content["problems"]
        == broken
        == [unit_bytes["state"] for unit_bytes in content["lines"]].count("problem")
    )
    same_moment = [unit_bytes for unit_bytes in shown(text) if unit_bytes["about"] != "time"]
    assert same_moment == [unit_bytes for unit_bytes in content["lines"] if unit_bytes["about"] != "time"]
    assert tuple(unit_bytes["about"] for unit_bytes in content["lines"]) == ORDER


def shown(text: str) -> list[dict[str, str]]:
    """The lines of the doctor's output as text."""
    found: list[dict[str, str]] = []
    for row in text.partition("\n\n")[0].splitlines():
        if line := SHOWN.fullmatch(row):
            found.append({"about": line[2], "state": line[1], "found": line[3], "remedy": ""})
        else:
            found[-1]["remedy"] = row.strip()
    return found


@pytest.mark.usefixtures("fake")
def test_a_wrong_option_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        doctor.main(["--jsn"])

    assert ended.value.code == 2
    assert "--jsn" in capsys.readouterr().err


@needs_gcc
@pytest.mark.usefixtures("fake")
def test_no_files_are_left(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """After the doctor's run, the files and their modes are as before."""
    before = {path: stat.S_IMODE(path.stat().st_mode) for path in place.folder.rglob("*")}
    doctor.main([])

    assert {path: stat.S_IMODE(path.stat().st_mode) for path in place.folder.rglob("*")} == before


MODULES = sorted(PACKAGE.glob("*.py"))


def command(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the package as a program; its environment has only the variables *environ*."""
    argv = [sys.executable, "-IB", str(PACKAGE), *words]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)


def test_wrong_settings_start_nothing() -> None:
    """Each error has one line and a hint. The token is not printed."""
    token = "two secret words"
    done = command("services", JUPYTER_PORT="http", SSH="perhaps", JUPYTER_TOKEN=token)
    lines = done.stderr.splitlines()

    assert (done.returncode, done.stdout) == (2, "")
    for number, name in enumerate(("JUPYTER_TOKEN", "JUPYTER_PORT", "SSH")):
        assert lines[number].startswith(f"torchkiln: {name}")
    assert "help" in lines[-1]
    assert len(lines) == 4
    assert "secret words" not in done.stderr


def test_without_a_command_services_are_started() -> None:
    assert command(SSH="perhaps").stderr == command("services", SSH="perhaps").stderr


@pytest.mark.parametrize("word", ["", "servces", "--help"])
def test_an_unknown_command(word: str) -> None:
    done = command(word)

    assert (done.returncode, done.stdout) == (2, "")
    assert repr(word) in done.stderr
    assert "help" in done.stderr


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_the_package_needs_only_python(module: Path) -> None:
    """The base's Python runs it, because it must diagnose a broken virtual environment."""
    tree = ast.parse(module.read_text())
    named = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    named |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}

    assert {name.partition(".")[0] for name in named} <= {*sys.stdlib_module_names, "workplace"}
