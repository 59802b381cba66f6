"""Tier 0 of the smoke suite inside the real image, by our own runtime."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchkiln.store.root import cache_root
from torchkiln.util.places import ROOT

pytestmark = pytest.mark.proof

TIER_0 = {"import", "claims", "linkage", "lock", "archs", "cpu-train", "compile-cpu"}


def test_tier_0_passes_inside(image: dict[str, Any], tmp_path: Path) -> None:
    """Every check runs and passes, on this digest."""
    report = tmp_path / "report.json"
    command = [sys.executable, str(ROOT / "build.py"), "smoke", "--force", "--output", image["layout"]]
    done = subprocess.run(
        [*command, "--report", str(report), image["ref"]], cwd=ROOT, capture_output=True, text=True
    )
    shutil.rmtree(cache_root() / "rootfs" / image["digest"].removeprefix("sha256:"), ignore_errors=True)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(report.read_bytes())
    assert told["image"] == image["digest"]
    outcomes = {check["id"]: check["outcome"] for check in told["checks"]}
    assert outcomes == dict.fromkeys(sorted(TIER_0), "passed")
