"""What holds for every test."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.docker.scene import scene
from tests.engine.crane import crane
from tests.engine.fixture import engine, podman, second_engine
from tests.engine.registry import registry
from tests.workplace import workplace

__all__ = ["crane", "engine", "podman", "registry", "scene", "second_engine", "workplace"]


# The longest begin first, so that all processes end at about the same time. Files with many containers come
# after tests/docker/, which builds in the same engine.
_FIRST = (
    "tests/docker/",
    "tests/integration/test_campaign.py",
    "tests/integration/test_hostile_index.py",
    "tests/integration/test_registry.py",
    "tests/unit/test_confused_statements.py",
    "tests/unit/test_layout_limits.py",
    "tests/integration/test_smoke_bundle.py",
    "tests/integration/test_publish.py",
    "tests/unit/test_hostile_tar_bombs.py",
    "tests/unit/test_lock_beside.py",
    "tests/unit/test_fuzz.py",
    "tests/integration/test_run_on_docker.py",
    "tests/integration/test_containers.py",
    "tests/integration/test_ssh.py",
    "tests/integration/test_jupyter.py",
    "tests/integration/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files in that order, then all others."""

    def rank(item: pytest.Item) -> int:
        return next((at for at, place in enumerate(_FIRST) if item.nodeid.startswith(place)), len(_FIRST))

    items.sort(key=rank)


class ByEngine(LoadScopeScheduling):
    """A file's tests in one process, as by `--dist loadfile`; and all of tests/docker: they share names."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return str(Path(path).parent) if path.startswith("tests/docker/") else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByEngine:
    """Whatever --dist says."""
    return ByEngine(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """One more than there are cores, for tests of engines wait; `-n logical` is the cores."""
    return len(os.sched_getaffinity(0)) + 1 if config.option.numprocesses == "auto" else None


# No test is judged by the clock: machines are slow, busy and shared. `make test` draws few examples, the same
# each time; `make proof` draws more, and others each time (--hypothesis-profile=long).
_CALM = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "database": None}
settings.register_profile("short", max_examples=25, derandomize=True, **_CALM)
settings.register_profile("long", max_examples=100, print_blob=True, **_CALM)
settings.load_profile("short")
