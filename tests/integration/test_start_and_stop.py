"""Containers that start and stop: commands in the services' place, signals, exit codes, the healthcheck."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.openssh import READY
from tests.workplace import HEALTHCHECK, TAG, Workplace, key

pytestmark = pytest.mark.network  # wheels, and where the cache has none, the base

KEEP = ("sh", "-c", "echo up; exec sleep 600")


def test_a_command_runs_in_place_of_the_services(workplace: Workplace) -> None:
    ran = workplace.run("-e", "MINE=1", command=["sh", "-c", "echo $MINE $VIRTUAL_ENV; pwd; exit 42"])

    assert (ran.returncode, ran.stdout) == (42, "1 /opt/venv\n/workspace\n")
    assert "Jupyter" not in ran.stderr


@pytest.mark.parametrize(("command", "code"), [("nowhere", 127), ("/etc/passwd", 126)])
def test_what_cannot_run_has_the_shells_codes(workplace: Workplace, command: str, code: int) -> None:
    ran = workplace.run(command=[command])

    assert ran.returncode == code
    assert command in ran.stderr


def test_a_signal_reaches_the_command(workplace: Workplace) -> None:
    """Its own answer is the container's code."""
    loop = "trap 'echo told; exit 7' TERM; echo up; while :; do sleep 0.1; done"
    with workplace.started(command=["bash", "-c", loop]) as container:
        container.says("up")
        container.docker("stop", "--time", "20", container.name)

        assert container.code() == 7
        assert "told" in container.logs()


def test_orphans_are_reaped(workplace: Workplace) -> None:
    """PID 1 is tini: what a shell leaves behind does not stay as a zombie."""
    with workplace.started(command=KEEP) as container:
        container.says("up")
        container.inside("sh", "-c", "(sleep 0 & exec sleep 0.2) & exit 0")
        end = time.monotonic() + 300
        while "Z" in container.inside("ps", "-eo", "stat="):
            assert time.monotonic() < end
            time.sleep(0.1)
        assert container.inside("ps", "-p", "1", "-o", "comm=") == "tini\n"


def test_services_end_when_they_are_told_to(workplace: Workplace, tmp_path: Path) -> None:
    """All of them, within the two seconds after which the engine here would kill them; with 0."""
    options = ("-e", f"SSH_PUBLIC_KEY={key(tmp_path)[1]}", "-e", "TENSORBOARD_LOGDIR=/workspace")
    with workplace.started(*options) as container:
        container.says("is running at")
        container.says(READY)
        container.docker("stop", "--time", "2", container.name)

        assert container.code() == 0
        assert "error" not in container.logs().lower()


def test_a_service_that_dies_is_started_again(workplace: Workplace) -> None:
    """With the same token; and when that does not help, the container ends with what killed it."""
    kill = ("pkill", "-KILL", "-f", "jupyter-lab")
    with workplace.started() as container:
        for times in range(1, 3):
            container.says(rf"(?s)(is running at.*){{{times}}}")
            container.inside(*kill)
            container.says(rf"(?s)(jupyter was killed by SIGKILL.*restarting it.*){{{times}}}")
        container.says(r"(?s)(is running at.*){3}")
        tokens = set(re.findall(r"token=(\w{32,})", container.logs()))
        assert len(tokens) == 1
        container.inside(*kill)

        assert container.code() == 137
        assert "3 times within 60 s: the container exits" in container.logs()


def test_a_service_that_dies_ends_the_container_if_asked_to(workplace: Workplace) -> None:
    with workplace.started("-e", "TORCHKILN_RESTART=no") as container:
        container.says("is running at")
        container.inside("pkill", "-KILL", "-f", "jupyter-lab")

        assert container.code() == 137
        assert "jupyter was killed by SIGKILL" in container.logs()


def test_what_cannot_be_meant_starts_nothing(workplace: Workplace) -> None:
    """All of it is named; a port of Kubernetes' own is none of ours."""
    wrong = {
        "JUPYTER_PORT": "99999",
        "SSH": "perhaps",
        "JUPYTER_BASE_URL": "http://x",
        "SSH_PORT": "tcp://10.0.0.1:22",
    }
    ran = workplace.run(*(word for name, value in wrong.items() for word in ("-e", f"{name}={value}")))

    assert ran.returncode == 2
    for name in (
        "JUPYTER_PORT='99999'",
        "SSH='perhaps'",
        "JUPYTER_BASE_URL='http://x'",
        "nothing was started",
    ):
        assert name in ran.stderr
    assert "SSH_PORT" not in ran.stderr
    assert "running" not in ran.stderr


def test_the_start_says_what_it_found(workplace: Workplace) -> None:
    """How to get in, what the machine is, and warnings that a person can act on."""
    with workplace.started("--memory", "900m", "--shm-size", "64m") as container:
        for said in (
            rf"torchkiln: {TAG}: torch 2\.6\.0\+cu124",
            r"Jupyter: http://127\.0\.0\.1:8888/lab\?token=\w{32,}",
            r"SSH: off: no public key \(-e SSH_PUBLIC_KEY=",
            r"GPUs: none",
            r"900 MiB of memory \(limited\), /dev/shm 64 MiB; uid 0 can write to /workspace, /root, /tmp",
            r"warning: no GPU was passed to this container: add --gpus all",
            r"warning: /dev/shm has 64 MiB.*--shm-size=8g",
        ):
            container.says(said)


def test_help_names_every_switch(workplace: Workplace) -> None:
    ran = workplace.run(command=["help"])

    assert ran.returncode == 0
    names = {word for line in ran.stdout.splitlines() for word in re.findall(r"^  ([A-Z_]{2,})", line)}
    assert {"JUPYTER_TOKEN", "SSH_PUBLIC_KEY", "SSH_HOST_KEYS", "TENSORBOARD_LOGDIR", "TZ"} <= names


def test_health_is_whether_jupyter_answers(workplace: Workplace) -> None:
    with workplace.started("--health-interval", "1s", "--health-start-period", "60s") as container:
        container.serves()
        container.inside("pkill", "-STOP", "-f", "jupyter-lab")

        done = container.docker("exec", container.name, HEALTHCHECK, check=False)
        assert (done.returncode, done.stderr) == (1, "jupyter: port 8888: timed out\n")


def test_a_command_is_healthy_whatever_it_does(workplace: Workplace) -> None:
    with workplace.started(command=KEEP) as container:
        container.says("up")
        container.inside(HEALTHCHECK)


def test_a_read_only_root_is_enough(workplace: Workplace) -> None:
    """With tmpfs where the services write."""
    with workplace.started(
        "--read-only", "--tmpfs", "/run", "--tmpfs", "/tmp", "--tmpfs", "/root"
    ) as container:
        container.serves()
