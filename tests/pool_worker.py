"""Makes the process of the tests one of the pool's workers, so that they can call what workers do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from torchkiln.build import worker as build_worker


@pytest.fixture(scope="module", autouse=True)
def pool_worker() -> Iterator[None]:
    """For all tests of a module that imports it."""
    with (
        patch.object(build_worker, "_cancelled", threading.Event(), create=True),
        patch.object(build_worker, "_progress", [0], create=True),
    ):
        yield
