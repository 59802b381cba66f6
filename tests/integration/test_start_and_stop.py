"""Containers that start and stop: commands in the services' place, signals, exit codes, the healthcheck."""

from __future__ import annotations

import time

import pytest

from tests.workplace import Workplace

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
        end = time.monotonic() + 20
        while "Z" in container.inside("ps", "-eo", "stat="):
            assert time.monotonic() < end
            time.sleep(0.1)
        assert container.inside("ps", "-p", "1", "-o", "comm=") == "tini\n"


def test_services_end_when_they_are_told_to(workplace: Workplace) -> None:
    """By SIGTERM, long before an engine would kill them; with 0, for nothing went wrong."""
    with workplace.started() as container:
        container.says("is running at")
        container.docker("stop", "--time", "60", container.name)

        assert container.code() == 0
        assert "error" not in container.logs().lower()


def test_a_service_that_dies_ends_the_container(workplace: Workplace) -> None:
    with workplace.started() as container:
        container.says("is running at")
        container.inside("pkill", "-KILL", "-f", "jupyter-lab")

        assert container.code() != 0
        assert "jupyter ended" in container.logs()


def test_health_is_whether_jupyter_answers(workplace: Workplace) -> None:
    with workplace.started("--health-interval", "1s", "--health-start-period", "60s") as container:
        container.says("is running at")
        container.inside("/opt/torchkiln/healthcheck")
        container.inside("pkill", "-STOP", "-f", "jupyter-lab")

        done = container.docker("exec", container.name, "/opt/torchkiln/healthcheck", check=False)
        assert done.returncode != 0


def test_a_command_is_healthy_whatever_it_does(workplace: Workplace) -> None:
    with workplace.started(command=KEEP) as container:
        container.says("up")
        container.inside("/opt/torchkiln/healthcheck")


def test_a_read_only_root_is_enough(workplace: Workplace) -> None:
    """With tmpfs where the services write."""
    with workplace.started(
        "--read-only", "--tmpfs", "/run", "--tmpfs", "/tmp", "--tmpfs", "/root"
    ) as container:
        container.says("is running at")
        container.inside("/opt/torchkiln/healthcheck")
