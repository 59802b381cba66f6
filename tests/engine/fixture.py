"""What tests ask for: `engine`, the environment that leads Docker's client to a real engine.

One that answers already is used as it is (25 or newer, with buildx). Else one is brought up, one for all
of a test run's processes, and goes when the run ends. Where none can be had the test is skipped, and fails
where TORCHKILN_NEEDS_ENGINE is set, as `.ci/run` sets it.
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

_OLDEST = 25  # `docker load` reads OCI layouts from here on
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
    """The environment that reaches another engine, which knows nothing of the first one's images."""
    try:
        return reach(_owner(), "second")
    except NoEngine as error:
        give_up(str(error))


def reach(owner: int, name: str = "") -> Mapping[str, str]:
    """The environment that leads to an engine: the user's own, or one that goes with the process *owner*.

    With a *name* it is always one of ours, and another one for each name.

    :raises NoEngine: none can be had.
    """
    if not name and _answers():
        return dict(os.environ)
    return _led_to(_brought_up(owner, name or "run"))


@pytest.fixture(scope="session")
def podman(engine: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """The environment of the same client, led to a podman that answers as Docker does."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(podman_service())
        except NoEngine as error:
            give_up(str(error))
        yield {**engine, **found}


def _owner() -> int:
    """The process whose end is the run's: pytest itself, or what its workers (pytest-xdist) stand under."""
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


def _led_to(place: Path) -> Mapping[str, str]:
    """The environment that leads to the engine in *place*.

    :raises NoEngine: it did not come up.
    """
    if (place / "failed").exists():
        raise NoEngine((place / "failed").read_text())
    found: dict[str, str] = json.loads((place / "ready").read_text())
    return {name: value for name, value in os.environ.items() if name != "DOCKER_CONTEXT"} | found


def _brought_up(owner: int, name: str) -> Path:
    """Where the run's engine of that name stands, once it is up or has failed."""
    place = home() / f"{name}-{owner}"
    home().mkdir(parents=True, exist_ok=True)
    with (home() / f"starts-{place.name}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            place.mkdir()
            # setsid --fork: not this process's child, for the first worker that asks may end before the run.
            argv = ["setsid", "--fork", sys.executable, "-m", "tests.engine.keeper", str(owner), str(place)]
            with (place / "keeper").open("wb") as log:
                subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)
        while not (place / "ready").exists() and not (place / "failed").exists():
            time.sleep(_LOOK)
    return place


def _answers() -> bool:
    """Whether the user's own engine will do."""
    asked = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        version = subprocess.run(asked, capture_output=True, text=True, timeout=120)
        buildx = subprocess.run(["docker", "buildx", "version"], capture_output=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return False
    major = version.stdout.strip().partition(".")[0]
    return version.returncode == 0 and buildx.returncode == 0 and major.isdigit() and int(major) >= _OLDEST
