"""`torchkiln run --runtime docker` on a real engine, with an image of a few host programs."""

from __future__ import annotations

import itertools
import json
import os
import pty
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.place import NAME, TAG, Place, line_of, place, shared
from tests.needs import nightly
from tests.parity import compare

__all__ = ["place", "shared"]

pytestmark = pytest.mark.proof

# docs/deploy.md lists these too.
PODMANS_OWN = {
    "test_the_printed_line_makes_the_same_container": "no comma in the name of a folder that is bound",
    "test_an_image_is_loaded_once_and_again_if_its_name_was_reused": "no BuildKit",
    "test_on_a_terminal_the_command_has_one": "`docker run` ends with 0 whatever the command's code",
}
# These tests need no second engine: they test torchkiln before it uses an engine, or only its requests.
WITH_PODMAN_NIGHTLY = {
    "test_commands_run_with_the_settings_of_image_and_caller",
    "test_a_command_that_cannot_be_executed",
    "test_ports_are_published_if_the_image_starts_services",
    "test_a_command_that_does_not_end_is_killed_by_the_second_signal",
    "test_bad_usage_is_named",
}
LOOP = "echo ready; while :; do sleep 0.1; done"


@pytest.fixture(autouse=True)
def as_docker_does(request: pytest.FixtureRequest, place: Place) -> None:
    """Mark tests that fail with Podman as xfail, strict so that the list remains correct."""
    if place.kind != "podman":
        return
    name = request.function.__name__
    if name in WITH_PODMAN_NIGHTLY and nightly.args[0]:
        pytest.skip(nightly.kwargs["reason"])
    if why := PODMANS_OWN.get(name):
        request.applymarker(pytest.mark.xfail(reason=why, strict=True))


@pytest.fixture(autouse=True)
def nothing_is_left(place: Place) -> Iterator[None]:
    """No container and no volume is left after any run."""
    before = place.leftovers()
    yield
    # Other tests can briefly have volumes without a container.
    deadline = time.monotonic() + 300
    while (left := place.leftovers()) != before and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == before


@pytest.mark.parametrize(
    ("arguments", "out"),
    [
        pytest.param([], b"cmd 1\n", id="what the image starts"),
        pytest.param([TAG, "cat", "/etc/upper"], b"from the upper layer\n", id="tag and command"),
        pytest.param(["--", "sh", "-c", "echo $ENTRY $FROM; pwd"], b"1 config\n/workspace\n", id="dashes"),
        pytest.param(["--no-entrypoint", "--", "sh", "-c", "echo [$ENTRY]"], b"[]\n", id="bare"),
        pytest.param(["--no-entrypoint"], b"cmd\n", id="bare, what the image starts"),
        pytest.param(["-e", "FROM=me", "--", "sh", "-c", "echo $FROM"], b"me\n", id="env"),
        pytest.param(["--user", "5:6", "--", "sh", "-c", "id -u; id -g"], b"5\n6\n", id="user"),
        pytest.param(["-w", "/bin", "--", "sh", "-c", "pwd"], b"/bin\n", id="workdir"),
        pytest.param(
            ["--shm-size", "64m", "--", "sh", "-c", "stat -fc '%b %S' /dev/shm"], b"16384 4096\n", id="shm"
        ),
    ],
)
def test_commands_run_with_the_settings_of_image_and_caller(
    place: Place, arguments: list[str], out: bytes
) -> None:
    got = place.run(*arguments)

    assert (got.returncode, got.stdout) == (0, out), got.stderr


def test_streams_and_exit_code_are_those_of_the_command(place: Place) -> None:
    """A large input arrives completely, and stdout and stderr are separate."""
    data = os.urandom(3_000_000)
    got = place.run("--", "sh", "-c", "cat; echo to stderr >&2; exit 42", stdin=data)

    assert (got.returncode, got.stdout == data) == (42, True)
    assert got.stderr.endswith(b"to stderr\n")


def test_the_engine_has_the_image_of_the_layout(place: Place) -> None:
    """No path and no setting differs, except that Docker makes the missing working directory."""
    assert place.run("--", "id").returncode == 0
    found = compare(TAG, f"docker:{NAME}", place.output, place.environ)

    assert {(one.at, one.what) for one in found.left} <= {("workspace", "only-in-b")}
    assert found.paths > 10


@pytest.mark.parametrize(("command", "code"), [("nowhere", 127), ("/etc", 126)])
def test_a_command_that_cannot_be_executed(place: Place, command: str, code: int) -> None:
    """The exit codes are those of a shell: the engine sets them, because no entrypoint runs."""
    got = place.run("--no-entrypoint", "--", command)

    assert (got.returncode, got.stdout) == (code, b"")
    assert command in got.stderr.decode()
    assert b"Traceback" not in got.stderr


def test_the_printed_line_makes_the_same_container(place: Place, shared: Path) -> None:
    """`docker inspect` shows the same settings for the container of `run` and of the printed line."""
    (shared / "a,b").mkdir()
    options = ["--user", "5", "-e", "A=b c", "-p", "127.0.0.1::9/udp", "-p", "[::1]::8888", "-w", "/etc"]
    options += ["--bind", f"{shared / 'a,b'}:/a:ro", "--workspace", str(shared), "--shm-size", "8m"]
    process = place.started(*options, TAG, "--", "sh", "-c", f"trap 'exit 0' INT; {LOOP}")
    configs: list[dict[str, Any]] = []
    try:
        running = place.docker("ps", "--quiet", "--filter", f"ancestor={NAME}")
        configs += json.loads(place.docker("inspect", running))
    finally:
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
    argv = line_of(stderr)
    made = place.docker(argv[1].replace("run", "create"), *argv[2:])
    configs += json.loads(place.docker("inspect", made))
    place.docker("rm", "--volumes", made)

    for config in configs:
        del config["Config"]["Hostname"]
    assert configs[0]["Config"] == configs[1]["Config"]
    assert plain(configs[0]["HostConfig"]) == plain(configs[1]["HostConfig"])


def plain(config: dict[str, Any]) -> dict[str, Any]:
    """*config* without unset values, which Docker's client and SDK represent differently."""
    return {key: value for key, value in config.items() if value and key != "ConsoleSize"}


def test_an_image_is_loaded_once_and_again_if_its_name_was_reused(place: Place) -> None:
    place.docker("rmi", "--force", NAME) if place.docker("images", "--quiet", NAME) else None
    loading = f"loading {TAG} into".encode()

    assert loading in place.run("--", "id").stderr
    assert loading not in place.run("--", "id").stderr

    (place.folder / "Dockerfile").write_text(f"FROM {NAME}\nENV FROM=elsewhere\n")
    place.docker("buildx", "build", "--quiet", "--load", "--tag", NAME, str(place.folder))
    got = place.run("--", "sh", "-c", "echo $FROM")
    assert (loading in got.stderr, b", replacing sha256:" in got.stderr, got.stdout) == (
        True,
        True,
        b"config\n",
    )


def test_an_image_that_only_the_engine_has(place: Place) -> None:
    """`run` finds it by its tag if no layout has this tag, or by its complete name."""
    place.run("--", "id")
    place.docker("tag", NAME, "pytorch-cuda:of-the-engine")
    try:
        for name in ("of-the-engine", "docker:pytorch-cuda:of-the-engine"):
            got = place.run(name, "--", "cat", "/etc/upper")
            assert (got.returncode, got.stdout) == (0, b"from the upper layer\n"), got.stderr
    finally:
        place.docker("rmi", "pytorch-cuda:of-the-engine")


def test_the_workspace(place: Place, shared: Path) -> None:
    """/workspace is ./workspace if it exists, or the folder of --workspace, unless a bind has this target."""
    (shared / "workspace").mkdir()
    (shared / "other").mkdir()
    place = replace(place, folder=shared, output=place.folder / "dist")

    assert place.run("--", "touch", "here").returncode == 0
    assert place.run("--workspace", "other", "--", "touch", "there").returncode == 0
    assert place.run("--bind", f"{shared}/other:/workspace/", "--", "touch", "bound").returncode == 0

    assert [path.name for path in (shared / "workspace").iterdir()] == ["here"]
    assert sorted(path.name for path in (shared / "other").iterdir()) == ["bound", "there"]


@pytest.mark.parametrize(
    ("arguments", "ports"),
    [
        ([], ["127.0.0.1:8888:8888"]),
        (["-e", "SSH_PUBLIC_KEY=k"], ["127.0.0.1:8888:8888", "127.0.0.1:2222:22"]),
        (["-p", "127.0.0.1::8888"], ["127.0.0.1::8888"]),
        (["--", "id"], []),
    ],
)
def test_ports_are_published_if_the_image_starts_services(
    place: Place, arguments: list[str], ports: list[str]
) -> None:
    line = line_of(place.run(*arguments).stderr)

    assert [value for option, value in itertools.pairwise(line) if option == "--publish"] == ports


def test_a_port_in_use(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        got = place.run("-p", f"127.0.0.1:{taken.getsockname()[1]}:80", "--", "id")

    assert got.returncode == 8
    assert b"hint: publish another port of the host" in got.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_command(place: Place, number: signal.Signals) -> None:
    process = place.started("--", "sh", "-c", f"trap 'echo caught; exit 5' INT TERM; {LOOP}")
    process.send_signal(number)
    out, err = process.communicate()

    assert (process.returncode, out) == (5, b"caught\n"), err


def test_a_command_that_does_not_end_is_killed_by_the_second_signal(place: Place) -> None:
    process = place.started("--no-entrypoint", "--", "sh", "-c", f"trap 'echo not yet' INT; {LOOP}")
    assert process.stdout
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == b"not yet\n"
    process.send_signal(signal.SIGINT)
    process.communicate()

    assert process.returncode == 128 + signal.SIGKILL


def test_a_killed_run_leaves_a_container_that_removes_itself(place: Place) -> None:
    """The engine removes it when the command ends."""
    process = place.started("--", "sh", "-c", "echo ready; cat")
    process.kill()
    process.communicate()

    while place.docker("ps", "--all", "--quiet", "--filter", f"ancestor={NAME}"):
        time.sleep(0.2)


def test_on_a_terminal_the_command_has_one(place: Place) -> None:
    """On a terminal, Docker's client runs the command. The test types Ctrl-C on the terminal."""
    ours, terminal = pty.openpty()
    command = f"trap 'echo caught; exit 5' INT; [ -t 0 ] && echo terminal; {LOOP}"
    process = subprocess.Popen(
        place.argv("--", "sh", "-c", command),
        env=dict(place.environ),
        cwd=place.folder,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    output = b""
    try:
        while b"ready" not in output.partition(b"terminal\r\n")[2]:
            output += os.read(ours, 4096)
        os.write(ours, b"\x03")
        while b"caught" not in output.partition(b"terminal\r\n")[2]:
            output += os.read(ours, 4096)
    finally:
        assert process.wait() == 5, output
        os.close(ours)
    assert b"docker run --rm --interactive --tty" in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["2.7-run-tset", "id"], "no such image: '2.7-run-tset'"),
        (["docker:nowhere:1", "id"], "nowhere:1: no such image in the engine"),
        (["--bind", "/nowhere:/x", "--", "id"], "cannot mount /nowhere: no such file or directory"),
        (
            ["-p", "x:y:z:1", "--gpus", "some", "--", "id"],
            "--gpus some: must be all, none, a number or device=ID,ID\n--publish x:y",
        ),
        (["--user", "no-such-user", "--", "id"], "no-such-user"),
    ],
)
def test_bad_usage_is_named(place: Place, arguments: list[str], words: str) -> None:
    got = place.run(*arguments)

    assert got.returncode == 2, got.stderr
    assert words in got.stderr.decode()
    assert b"Traceback" not in got.stderr
