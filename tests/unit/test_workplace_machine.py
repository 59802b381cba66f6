"""What a container may use: limits of both generations of cgroups, shared memory, folders to write to."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests import inside
from tests.mounts import dev
from workplace import machine
from workplace.machine import look, size, writable

HAS = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
CORES = len(os.sched_getaffinity(0))
LOOK = "import dataclasses, json, workplace.machine as m; print(json.dumps(dataclasses.asdict(m.look())))"


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
@pytest.mark.parametrize(
    ("told", "limit"),
    [("268435456\n", 1 << 28), ("max\n", None), ("9223372036854771712\n", None), ("", None)],
)
def test_memory_is_the_limit_or_the_hosts(name: str, told: str, limit: int | None, tmp_path: Path) -> None:
    """What the first generation says where there is no limit is a number too."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(told)

    assert machine._memory(tmp_path) == ((limit, True) if limit else (HAS, False))


@pytest.mark.parametrize(
    ("told", "cores"),
    [("50000 100000\n", 0.5), ("max 100000\n", CORES), ("99900000 100000\n", CORES), ("", CORES)],
)
def test_cores_are_the_quota_or_those_that_may_be_used(told: str, cores: float, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(told)

    assert machine._cores(tmp_path) == cores


def test_without_cgroups_there_are_no_limits(tmp_path: Path) -> None:
    assert machine._memory(tmp_path) == (HAS, False)
    assert machine._cores(tmp_path) == CORES


def test_shared_memory_is_measured(tmp_path: Path) -> None:
    """A /dev/shm of 64 MiB, as engines give it."""
    found = json.loads(inside.python(LOOK, before=dev(tmp_path, shm="64m")))

    assert found["shm"] == machine.SMALL_SHM


def test_a_shared_memory_that_nobody_may_use_is_none(tmp_path: Path) -> None:
    assert machine._shm(tmp_path / "absent") == 0


def test_folders_are_told_by_whether_a_file_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once, in the order of work, home, /tmp."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "absent"))
    found = look()
    monkeypatch.setenv("HOME", str(tmp_path))
    at_home = look()

    assert (found.writable, found.closed) == ((str(tmp_path), "/tmp"), (str(tmp_path / "absent"),))
    assert (at_home.writable, at_home.closed) == ((str(tmp_path), "/tmp"), ())
    assert list(tmp_path.iterdir()) == []


def test_a_system_that_is_read_only_is_closed_to_root_too() -> None:
    """access(2) would say yes."""
    assert not writable("/proc/self")


@given(st.integers(0, 1 << 50))
@example(1 << 30)
@example((1 << 30) - 1)
def test_sizes_are_told_as_people_say_them(count: int) -> None:
    """Within a tenth of a GiB, or one MiB."""
    number, unit = size(count).split()
    one = {"MiB": 1 << 20, "GiB": 1 << 30}[unit]

    assert abs(float(number) * one - count) <= (one if unit == "MiB" else 0.05 * one + 1)
    assert (unit == "GiB") is (count >= 1 << 30)
