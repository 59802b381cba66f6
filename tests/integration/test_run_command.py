"""`torchkiln run` on a layout with an image of a few host programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.roots import tiny_layout
from torchkiln.errors import ConfigError, ToolMissing
from torchkiln.runtimes.command import Program
from torchkiln.runtimes.rootfs import RootfsRuntime

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
    try:
        RootfsRuntime().run(folder / "root", Program(argv=("id",), env={"PATH": "/bin"}))
    except ToolMissing as error:
        pytest.skip(f"no namespaces here: {error}")
    return layout


def run(dist: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with a cache beside *dist*."""
    code = (
        "import sys; from torchkiln.cli.run import run; from torchkiln.errors import KilnError\n"
        "from click import UsageError\n"
        "try: run.main(sys.argv[1:], standalone_mode=False)\n"
        "except UsageError as error: sys.stderr.write(error.message); sys.exit(2)\n"
        "except KilnError as error: sys.stderr.write(error.message); sys.exit(error.exit_code)"
    )
    return subprocess.run(
        [sys.executable, "-c", code, "--output", str(dist), *args],
        env={"PATH": "/usr/bin:/bin", "TORCHKILN_CACHE": str(dist.parent / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )


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
    ],
)
def test_commands_run_as_the_image_and_the_caller_say(dist: Path, args: list[str], out: str) -> None:
    got = run(dist, *args)

    assert (got.returncode, got.stdout) == (0, out)


def test_the_code_is_the_commands_own_and_stdout_only_its_own(dist: Path) -> None:
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


@pytest.mark.parametrize(
    ("args", "words"),
    [
        pytest.param(["-p", "80", "--", "id"], "need --runtime docker", id="port"),
        pytest.param(
            ["--gpus", "2", "--", "id"],
            "--gpus 2: only all or none is supported without an engine",
            id="gpus",
        ),
        pytest.param(["docker:x", "id"], "need --runtime docker", id="engine's image"),
        pytest.param(["2.7-tset", "true"], "no such image: '2.7-tset'", id="tag"),
        pytest.param(["--bind", "nonsense", "--", "id"], "--bind nonsense: not SRC:DST", id="bind"),
        pytest.param(["--user", "kim", "--", "id"], "user 'kim' is not a numeric UID", id="user"),
        pytest.param(["--shm-size", "lots", "--", "id"], "--shm-size lots: not a valid size", id="size"),
        pytest.param(["-e", "A", "--", "id"], "--env A: not NAME=VALUE", id="env"),
    ],
)
def test_bad_usage_is_named(dist: Path, args: list[str], words: str) -> None:
    got = run(dist, *args)

    assert got.returncode == ConfigError.exit_code
    assert words in got.stderr
    assert "Traceback" not in got.stderr
