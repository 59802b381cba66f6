"""`torchkiln run` with a small image of host programs, without an engine; also kills by the memory limit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import forked
from tests.needs import namespaces_fault
from tests.roots import tiny_layout
from torchkiln.runtimes.driver import killed_for_memory

CONFIG = {
    "Env": ["PATH=/bin", "FROM=config"],
    "Entrypoint": ["/bin/env", "ENTRY=1"],
    "Cmd": ["sh", "-c", "echo cmd $ENTRY"],
    "WorkingDir": "/etc",
}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    layout = tiny_layout(folder, CONFIG, "2.7-test")
    if fault := namespaces_fault():
        pytest.skip(f"no namespaces: {fault}")
    return layout


def run(dist: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a separate process, with a cache beside *dist*."""
    env = {"PATH": "/usr/bin:/bin", "TORCHKILN_CACHE": str(dist.parent / "cache")}
    return forked.run(("run", "--output", str(dist), *args), env=env)


@pytest.mark.parametrize(
    ("args", "out"),
    [
        pytest.param([], "cmd 1\n", id="what the image starts"),
        pytest.param(["2.7-test", "cat", "upper"], "from the upper layer\n", id="tag and command"),
        pytest.param(["--", "sh", "-c", "echo $ENTRY $FROM; pwd"], "1 config\n/etc\n", id="dashes"),
        pytest.param(["--no-entrypoint", "--", "sh", "-c", "echo [$ENTRY]"], "[]\n", id="bare"),
        pytest.param(["-e", "FROM=me", "--", "sh", "-c", "echo $FROM"], "me\n", id="env"),
        pytest.param(["--user", "5:6", "--", "sh", "-c", "id -u; id -g"], "5\n6\n", id="user"),
        pytest.param(["-w", "/bin", "2.7-test", "--", "sh", "-c", "pwd"], "/bin\n", id="workdir"),
        pytest.param(["2.7-test", "-w", "/bin", "--", "sh", "-c", "pwd"], "/bin\n", id="tag first"),
        pytest.param(["2.7-test", "sh", "-c", "echo $1", "-", "--", "-w"], "-w\n", id="words of a command"),
    ],
)
def test_commands_run_with_the_settings_of_image_and_caller(dist: Path, args: list[str], out: str) -> None:
    got = run(dist, *args)

    assert (got.returncode, got.stdout) == (0, out)


def test_exit_code_and_stdout_are_those_of_the_command(dist: Path) -> None:
    got = run(dist, "--", "sh", "-c", "echo data; exit 42")

    assert (got.returncode, got.stdout) == (42, "data\n")


def test_binds(dist: Path, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("host")
    script = "cat /b/f; touch /b/new && echo no"
    got = run(dist, "--bind", f"{tmp_path}:/b:ro", "--", "sh", "-c", script)

    assert got.stdout == "host"
    assert "Read-only" in got.stderr
    assert run(dist, "--bind", f"{tmp_path}:/b", "--", "touch", "/b/new").returncode == 0
    assert (tmp_path / "new").exists()


def test_the_workspace(dist: Path, tmp_path: Path) -> None:
    assert run(dist, "--workspace", str(tmp_path), "--", "touch", "/workspace/new").returncode == 0
    assert (tmp_path / "new").exists()


_LIMIT = 32 << 20
# For cgroup v1 and v2: the folder, and the file with the memory limit.
_KINDS = {"/sys/fs/cgroup/memory": "memory.limit_in_bytes", "/sys/fs/cgroup": "memory.max"}


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup with a limit of 32 MiB."""
    for parent, limit in _KINDS.items():
        place = Path(parent, f"torchkiln-test-{os.getpid()}")
        try:
            place.mkdir()
            (place / limit).write_text(str(_LIMIT))
        except OSError:
            if place.is_dir():
                place.rmdir()
            continue
        yield place
        place.rmdir()
        return
    pytest.skip("cannot create a memory cgroup: this requires root and a writable /sys/fs/cgroup")


def test_a_kill_by_the_memory_limit_is_counted(cgroup: Path) -> None:
    before = killed_for_memory()
    code = f"open({str(cgroup / 'cgroup.procs')!r}, 'w').write('0'); bytearray({8 * _LIMIT})"
    done = subprocess.run([sys.executable, "-c", code], check=False)
    end = time.monotonic() + 300
    while killed_for_memory() == before and time.monotonic() < end:
        time.sleep(0.05)

    assert done.returncode == -9
    assert killed_for_memory() == before + 1


def test_a_kernel_without_a_count_of_kills(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("nr_free_pages 7\noom_killer 9\n")

    assert killed_for_memory(tmp_path / "vmstat") == killed_for_memory(tmp_path / "nowhere") == 0
