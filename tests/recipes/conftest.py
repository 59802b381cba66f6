"""Marks the tests of recipes that run torch as part of `make proof`, like the mutants of the smoke suite."""

from __future__ import annotations

import pytest

QUICK = {"test_measure", "test_pages"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder that need torch."""
    for item in items:
        if item.path.parent.name == "recipes" and item.path.stem not in QUICK:
            item.add_marker("proof")
