"""The smoke suite in a container: what it sees, how it ends, and that it is the same as without an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.docker.scene import NAME, TAG, Scene
from torchkiln.docker.daemon import Engine, find_engine
from torchkiln.errors import KilnError
from torchkiln.runtimes.command import Bind
from torchkiln.runtimes.docker import captured
from torchkiln.runtimes.docker_args import Container

pytestmark = pytest.mark.network  # pip's wheel, and where the cache has none, the base


@pytest.fixture(scope="module")
def loaded(scene: Scene) -> Engine:
    """The engine, with our image in it and in `dist`."""
    ran = scene.kiln("--load", "--quiet")
    assert ran.returncode == 0, ran.stderr
    return find_engine(scene.environ, builds=False)


def in_shell(script: str, **more: Any) -> Container:
    return Container(image=NAME, command=("sh", "-c", script), entrypoint=False, **more)


def test_what_a_command_says_and_finds(loaded: Engine, tmp_path: Path) -> None:
    """Both streams, its code, files of ours at their places, root's; and nothing of it stays."""
    (tmp_path / "folder/__pycache__").mkdir(parents=True)
    (tmp_path / "folder/a.txt").write_text("from outside\n")
    (tmp_path / "folder/__pycache__/a.pyc").write_text("")
    script = "cat /x/y/a.txt; ls /x/y; stat -c %u:%g /x/y/a.txt; echo $NCCL_DEBUG; pwd >&2; exit 3"
    files = (Bind(source=tmp_path / "folder", target="/x/y"),)
    ended = captured(
        in_shell(script, files=files, env=("NCCL_DEBUG=INFO",), workdir="/"), loaded, timeout_s=60
    )

    assert ended.stdout.decode() == "from outside\na.txt\n0:0\nINFO\n"
    assert (ended.stderr, ended.code, ended.timed_out) == (b"/\n", 3, False)
    assert captured(in_shell("ls /x"), loaded, timeout_s=60).code != 0


def test_a_command_that_takes_too_long_is_killed(loaded: Engine, scene: Scene) -> None:
    """What it had said is kept; the container is gone."""
    ended = captured(in_shell("echo begun; sleep 600"), loaded, timeout_s=2)

    assert (ended.stdout, ended.code, ended.timed_out) == (b"begun\n", 137, True)
    assert scene.docker("ps", "--all", "--quiet", "--filter", f"ancestor={NAME}") == ""


def test_where_the_files_cannot_be_copied_in_no_container_stays(loaded: Engine, scene: Scene) -> None:
    """A path that goes through a file: the engine refuses it when the container is there already."""
    files = (Bind(source=Path(__file__), target="/etc/passwd/x"),)
    with pytest.raises(KilnError):
        captured(in_shell("true", files=files), loaded, timeout_s=60)

    assert scene.docker("ps", "--all", "--quiet", "--filter", f"ancestor={NAME}") == ""


def test_a_run_gives_the_same_findings_as_without_an_engine(loaded: Engine, scene: Scene) -> None:
    """An image whose torch is none: it fails, check by check, in the same way."""
    told = {}
    for runtime in ("rootfs", "docker"):
        ran = scene.command(
            "smoke", TAG, "--images", str(scene.images), "--runtime", runtime, "--json", "--shm-size", "64m"
        )
        assert ran.returncode == 10, ran.stderr
        told[runtime] = json.loads(ran.stdout)

    assert told["docker"]["runtime"] == "docker"
    assert told["docker"]["image"] == told["rootfs"]["image"]
    assert told["docker"]["host"]["shm"] == told["rootfs"]["host"]["shm"] == 64 << 20
    # What the kernel killed meanwhile, of whatever other tests ran beside, is no finding.
    findings = [
        {
            check["id"]: (check["outcome"], check["message"].partition("\nmeanwhile the kernel killed ")[0])
            for check in told[runtime]["checks"]
        }
        for runtime in ("rootfs", "docker")
    ]
    assert findings[0] == findings[1]
    assert {outcome for outcome, _ in findings[0].values()} >= {"passed", "failed"}


def test_a_build_can_be_followed_by_the_suite(scene: Scene) -> None:
    """The digest is there, and so is what the suite found; the exit code is the suite's."""
    ran = scene.kiln("--smoke", "--json", "--quiet")
    told = json.loads(ran.stdout)

    assert ran.returncode == 10
    assert told["digest"].startswith("sha256:")
    assert told["smoke"]["verdict"] == "fail"
    assert told["smoke"]["checks"]["import"] == "failed"
    assert f"error: {TAG}: fail: " in ran.stderr
    assert "--tier needs --smoke" in scene.kiln("--tier", "1").stderr
    refused = scene.kiln("--smoke", "--engine", "docker")
    assert (refused.returncode, "--smoke is for --engine embedded" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--gpus", "2"), 2, "--gpus 2: only all or none is supported without an engine"),
        (
            ("--runtime", "docker", "--gpus", "some"),
            2,
            "--gpus some: must be all, none, a number or device=ID,ID",
        ),
        (("--runtime", "docker", "--shm-size", "big"), 2, "--shm-size big: not a valid size"),
    ],
)
def test_bad_usage_is_named(scene: Scene, arguments: tuple[str, ...], code: int, words: str) -> None:
    ran = scene.command("smoke", TAG, "--images", str(scene.images), *arguments)

    assert ran.returncode == code
    assert words in ran.stderr
