"""Declares the values and bounds of the checks of a project's image, as a suite does for its checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Check -> value -> the bound or the type of the value.
DECLARED: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "import": {
        "packages": {"at_least": 0},
        "modules": {"at_least": 0},
        "failed": {"equals": []},
        "without_modules": {"type": ["string"]},
    },
    "pip-check": {"packages": {"at_least": 1}, "broken": {"equals": []}},
    "linkage": {"libraries": {"at_least": 0}, "missing": {"equals": []}, "versions": {"equals": []}},
    "test": {"exit_code": {"equals": 0}},
}
TEST = "test"  # this check runs only if the project has a test
