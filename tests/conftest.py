"""What holds for every test."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests.engine.fixture import engine, podman, second_engine
from tests.engine.registry import registry

__all__ = ["engine", "podman", "registry", "second_engine"]


class ByEngine(LoadScopeScheduling):
    """A file's tests in one process, as by `--dist loadfile`; and all of tests/docker: they share names."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return str(Path(path).parent) if path.startswith("tests/docker/") else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByEngine:
    """Whatever --dist says."""
    return ByEngine(config, log)


# No test is judged by the clock: machines are slow, busy and shared.
settings.register_profile("torchkiln", deadline=None)
settings.load_profile("torchkiln")
