"""Make test data that takes long once per test run; all processes of the run read it."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder *name*, which all processes of a test run share; the first call fills it with *make*."""
    base = factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (done := place.with_suffix(".done")).exists():
            shutil.rmtree(place, ignore_errors=True)  # left by a failed attempt
            place.mkdir()
            make(place)
            done.touch()
    return place
