"""Let the test process do the work of the build's worker processes.

Tests can then call the functions of workers. Builds are faster: a worker takes 0.2 s of CPU time to start.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from torchkiln.engine import wheel_layers
from torchkiln.engine import worker as build_worker


@pytest.fixture(scope="module", autouse=True)
def pool_worker() -> Iterator[None]:
    """Set a worker's global variables in this process, in all tests of a module that imports this fixture."""
    with (
        patch.object(build_worker, "_cancelled", threading.Event(), create=True),
        patch.object(build_worker, "_progress", [0], create=True),
    ):
        yield


class _Threads(ThreadPoolExecutor):
    """Used in place of `util.processes.Workers`: submitted functions run in threads of this process."""

    def __init__(
        self, count: int, _start: Callable[..., object], cancelled: Any, progress: Any, _: int
    ) -> None:
        super().__init__(count)
        build_worker._cancelled, build_worker._progress = cancelled, progress


@contextmanager
def in_this_process() -> Iterator[None]:
    """Within this context, builds start no worker processes; only one build may run at a time."""
    names = ("_cancelled", "_progress")
    with (
        patch.object(wheel_layers, "Workers", _Threads),
        patch.multiple(build_worker, create=True, **dict.fromkeys(names)),
    ):
        yield


@pytest.fixture(autouse=True)
def no_workers() -> Iterator[None]:
    """In each test of a module that imports this fixture, builds start no worker processes."""
    with in_this_process():
        yield
