"""lock: exactly the locked distributions are installed, and their files match their RECORDs."""

import subprocess
import sys

import pytest

from smoke_tests.probe import probe


@pytest.mark.tier(0)
@pytest.mark.limit(600)
def test_lock(facts, measure):
    """The installed set, the hash of every file, each .pyc against its source."""
    seen = probe("installed")
    pip = subprocess.run(
        [sys.executable, "-I", "-B", "-m", "pip", "check"], capture_output=True, text=True, check=False
    )

    measure("files", seen["files"])
    measure("bytes", seen["bytes"])
    measure(
        "installed", seen["installed"], equals={wheel["name"]: wheel["version"] for wheel in facts["wheels"]}
    )
    for fault in ("broken", "absent", "changed", "unhashed", "stale", "unowned"):
        measure(fault, seen[fault], equals=[])
    measure("pip_check_says", (pip.stdout + pip.stderr).strip())
    measure("pip_check", pip.returncode, equals=0)
