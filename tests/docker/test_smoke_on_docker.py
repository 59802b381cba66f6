"""The smoke suite in a container: mounted files, timeouts, and the same findings as without an engine."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.docker.scene import NAME, TAG, Scene
from torchkiln.docker.daemon import Engine, find_engine
from torchkiln.errors import KilnError
from torchkiln.runtimes.command import Bind, Exited
from torchkiln.runtimes.docker import Container, captured

pytestmark = pytest.mark.network  # pip's wheel, and where the cache has none, the base


@pytest.fixture(scope="module")
def loaded(scene: Scene) -> Engine:
    """The engine, into which the image of the embedded engine in `dist` was loaded."""
    ran = scene.kiln("--load", "--quiet")
    assert ran.returncode == 0, ran.stderr
    return find_engine(scene.environ, builds=False)


def in_shell(script: str, **more: Any) -> Container:
    return Container(image=NAME, command=("sh", "-c", script), entrypoint=False, **more)


def run(container: Container, engine: Engine, *, timeout_s: float = 60) -> tuple[Exited, list[bytes]]:
    """The command's exit and its lines of output."""
    lines: list[bytes] = []
    return captured(container, engine, timeout_s=timeout_s, on_line=lines.append), lines


def test_output_and_exit_code_of_a_command(loaded: Engine, tmp_path: Path) -> None:
    """Both streams, the exit code and the mounted files, owned by root; nothing is left afterwards."""
    (tmp_path / "folder/__pycache__").mkdir(parents=True)
    (tmp_path / "folder/a.txt").write_text("from outside\n")
    (tmp_path / "folder/__pycache__/a.pyc").write_text("")
    script = "cat /x/y/a.txt; ls /x/y; stat -c %u:%g /x/y/a.txt; echo $NCCL_DEBUG; pwd >&2; exit 3"
    files = (Bind(source=tmp_path / "folder", target="/x/y"),)
    ended, lines = run(in_shell(script, files=files, env=("NCCL_DEBUG=INFO",), workdir="/"), loaded)

    assert lines == [b"from outside", b"a.txt", b"0:0", b"INFO"]
    assert (ended.stderr, ended.code, ended.timed_out) == (b"/\n", 3, False)
    assert run(in_shell("ls /x"), loaded)[0].code != 0


def test_a_line_arrives_while_the_command_runs(loaded: Engine) -> None:
    """A line arrives seconds before the next one, which may lack a line break."""
    arrived: dict[bytes, float] = {}
    container = in_shell("echo first; sleep 5; printf last")
    captured(container, loaded, timeout_s=60, on_line=lambda it: arrived.update({it: time.monotonic()}))

    assert list(arrived) == [b"first", b"last"]
    assert arrived[b"last"] - arrived[b"first"] > 2


def test_a_command_that_takes_too_long_is_killed(loaded: Engine, scene: Scene) -> None:
    """Its output is kept; the container is removed."""
    ended, lines = run(in_shell("echo begun; sleep 600"), loaded, timeout_s=2)

    assert (lines, ended.code, ended.timed_out) == ([b"begun"], 137, True)
    assert scene.docker("ps", "--all", "--quiet", "--filter", f"ancestor={NAME}") == ""


def test_no_container_remains_if_files_cannot_be_copied_in(loaded: Engine, scene: Scene) -> None:
    """A parent of the target path is a file, which the engine refuses after it created the container."""
    files = (Bind(source=Path(__file__), target="/etc/passwd/x"),)
    with pytest.raises(KilnError):
        run(in_shell("true", files=files), loaded)

    assert scene.docker("ps", "--all", "--quiet", "--filter", f"ancestor={NAME}") == ""


def test_a_run_gives_the_same_findings_as_without_an_engine(loaded: Engine, scene: Scene) -> None:
    """The image has a fake torch, so checks fail. They fail in the same way with and without an engine."""
    reports = {}
    for runtime in ("rootfs", "docker"):
        ran = scene.command(
            "smoke", TAG, "--images", str(scene.images), "--runtime", runtime, "--json", "--shm-size", "64m"
        )
        assert ran.returncode == 10, ran.stderr
        reports[runtime] = json.loads(ran.stdout)

    assert reports["docker"]["runtime"] == "docker"
    assert reports["docker"]["image"] == reports["rootfs"]["image"]
    assert reports["docker"]["host"]["shm"] == reports["rootfs"]["host"]["shm"] == 64 << 20
    # The list of processes that the kernel killed is removed: such a process may belong to another test.
    findings = [
        {
            check["id"]: (
                check["outcome"],
                check["message"].partition("\nthe kernel of that machine killed ")[0],
            )
            for check in reports[runtime]["checks"]
        }
        for runtime in ("rootfs", "docker")
    ]
    assert findings[0] == findings[1]
    assert {outcome for outcome, _ in findings[0].values()} >= {"passed", "failed"}


def test_a_build_can_be_followed_by_the_suite(scene: Scene) -> None:
    """The result has the digest and the suite's findings; the exit code is the suite's."""
    ran = scene.kiln("--smoke", "--json", "--quiet")
    result = json.loads(ran.stdout)

    assert ran.returncode == 10
    assert result["digest"].startswith("sha256:")
    assert result["smoke"]["verdict"] == "fail"
    assert result["smoke"]["checks"]["import"] == "failed"
    assert json.loads(ran.stderr.splitlines()[-1])["error"].startswith(f"{TAG}: fail: ")
