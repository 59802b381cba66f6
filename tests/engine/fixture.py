"""Fixtures: `engine` is the environment with which Docker's client reaches a real engine.

A running engine is used (25 or newer, with buildx). Otherwise one is started for all
processes of a test run, and stopped at its end. If none is available, the test is skipped, or fails if
TORCHKILN_NEEDS_ENGINE is set, as in `.ci/run`.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.engine.podman import podman_service
from tests.engine.root import NoEngine, home
from tests.needs import give_up

_OLDEST = 25  # `docker load` reads OCI layouts since this version
_LOOK = 0.2


@pytest.fixture(scope="session")
def engine() -> Mapping[str, str]:
    """The environment of a Docker client that reaches an engine."""
    try:
        return reach(_owner())
    except NoEngine as error:
        give_up(str(error))


@pytest.fixture(scope="session")
def second_engine(engine: Mapping[str, str]) -> Mapping[str, str]:
    """The environment of another engine, without the images of the first."""
    try:
        return reach(_owner(), "second")
    except NoEngine as error:
        give_up(str(error))


def reach(owner: int, name: str = "") -> Mapping[str, str]:
    """The environment of a client: of the user's engine, or of an engine that ends with the process *owner*.

    With a *name*, the tests always start their own engine, one for each name.

    :raises NoEngine: none is available.
    """
    if not name and _answers():
        return dict(os.environ)
    return _environment_of(_start(owner, name or "run"))


@pytest.fixture(scope="session")
def podman(engine: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """The environment with which Docker's client reaches a podman that serves Docker's API."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(podman_service())
        except NoEngine as error:
            give_up(str(error))
        yield {**engine, **found}


def _owner() -> int:
    """The process id of pytest's main process, also in a worker of pytest-xdist."""
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


def _environment_of(place: Path) -> Mapping[str, str]:
    """The environment of the engine in *place*.

    :raises NoEngine: it did not start.
    """
    if (place / "failed").exists():
        raise NoEngine((place / "failed").read_text())
    found: dict[str, str] = json.loads((place / "ready").read_text())
    return {name: value for name, value in os.environ.items() if name != "DOCKER_CONTEXT"} | found


def _start(owner: int, name: str) -> Path:
    """Start the engine *name* once per test run, and wait until it is ready or failed; returns its folder."""
    place = home() / f"{name}-{owner}"
    home().mkdir(parents=True, exist_ok=True)
    with (home() / f"starts-{place.name}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            place.mkdir()
            # setsid --fork, because the keeper must survive this worker, which may end before the run.
            argv = ["setsid", "--fork", sys.executable, "-m", "tests.engine.keeper", str(owner), str(place)]
            with (place / "keeper").open("wb") as log:
                subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)
        while not (place / "ready").exists() and not (place / "failed").exists():
            time.sleep(_LOOK)
    return place


def _answers() -> bool:
    """Whether the user's engine is usable."""
    argv = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        version = subprocess.run(argv, capture_output=True, text=True, timeout=120)
        buildx = subprocess.run(["docker", "buildx", "version"], capture_output=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return False
    major = version.stdout.strip().partition(".")[0]
    return version.returncode == 0 and buildx.returncode == 0 and major.isdigit() and int(major) >= _OLDEST
