"""Small suites and the runner that runs them: a suite is the real one's machinery with other checks in it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SUITE = Path(__file__).resolve().parent.parent / "smoke_tests"
CLAIMS = {
    "tag": "2.7.1-cuda12.1-cudnn9-runtime",
    "torch": "2.7.1+cu126",
    "cuda": "12.1",
    "wheel_cuda": "12.6",
    "status": "minor-compat",
    "flavor": "runtime",
    "os": "debian12",
    "python": "3.11.2",
    "cudnn": "9.5.1.17",
    "nccl": "2.26.2",
    "archs": ["sm_80", "sm_90"],
}
FACTS: dict[str, Any] = {"schema": 1, "claims": CLAIMS, "labels": {}, "wheels": []}


def suite_with(folder: Path, checks: Mapping[str, str]) -> Path:
    """A copy of the suite's machinery in *folder* whose only checks are *checks* (file name to source)."""
    shutil.copytree(SUITE, folder, ignore=shutil.ignore_patterns("test_*.py", "__pycache__"))
    for name, source in checks.items():
        (folder / name).write_text("import pytest\n\n" + source)
    return folder


def run_suite(
    suite: Path,
    scratch: Path,
    *options: str,
    python: str = sys.executable,
    facts: Mapping[str, Any] = FACTS,
    env: Mapping[str, str] | None = None,
    wheels: Path | None = None,
) -> list[dict[str, Any]]:
    """Every event that the runner tells; pytest is this interpreter's own where no *wheels* are given."""
    told = scratch / "facts.json"
    told.write_text(json.dumps(facts))
    command = [python, "-I", "-B", str(suite / "runner.py"), "--facts", str(told)]
    command += ["--wheels", str(wheels or scratch), *options]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def findings(events: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The findings among *events* by check."""
    return {event["id"]: event for event in events if event["event"] == "finding"}
