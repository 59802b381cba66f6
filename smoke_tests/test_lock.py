"""lock: exactly the locked distributions are installed, and their files match their RECORDs."""

import subprocess
import sys

import pytest

from smoke_tests.probe import probe

VALUES = {
    "lock": {
        "files": {"type": "integer"},
        "bytes": {"type": "integer"},
        "installed": {"expected": "packages"},
        "broken": {"equals": []},
        "absent": {"equals": []},
        "changed": {"equals": []},
        "unhashed": {"equals": []},
        "stale": {"equals": []},
        "unowned": {"equals": []},
        "pip_check_output": {"type": "string"},
        "pip_check": {"equals": 0},
    },
}


@pytest.mark.tier(0)
@pytest.mark.limit(600)
def test_lock(facts, measure):
    """Compare the installed distributions, the hash of every file, and each .pyc with its source."""
    results = probe("installed")
    pip = subprocess.run(
        [sys.executable, "-I", "-B", "-m", "pip", "check"], capture_output=True, text=True, check=False
    )

    measure("files", results["files"])
    measure("bytes", results["bytes"])
    measure("installed", results["installed"])
    for fault in ("broken", "absent", "changed", "unhashed", "stale", "unowned"):
        measure(fault, results[fault])
    measure("pip_check_output", (pip.stdout + pip.stderr).strip())
    measure("pip_check", pip.returncode)
