"""Mutants that run torch take minutes: they are part of `make proof`, and of `make gpu-mutants`."""

from __future__ import annotations

import pytest

QUICK = {"test_device_code", "test_liars", "test_linkage", "test_lock", "test_shared_objects"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder."""
    for item in items:
        if item.path.parent.name == "smoke_mutants" and item.path.stem not in QUICK:
            item.add_marker("proof")
