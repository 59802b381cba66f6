"""What takes long to make and is only read: made by one of a test run's processes, for all of them."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The run's folder of that name, which *make* filled for whoever asked first."""
    base = factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (done := place.with_suffix(".done")).exists():
            shutil.rmtree(place, ignore_errors=True)  # of one that failed
            place.mkdir()
            make(place)
            done.touch()
    return place
