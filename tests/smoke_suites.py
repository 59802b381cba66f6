"""Small suites: the real suite's modules with other checks; and a function that runs such a suite."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SUITE = Path(__file__).resolve().parent.parent / "smoke_tests"
DRIVER_PROBE = SUITE.parent / "rootfs/opt/torchkiln/workplace/driver_probe.py"
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
    """Copy the real suite to *folder*, with *checks* (file name to source) in place of its own checks."""
    shutil.copytree(SUITE, folder, ignore=shutil.ignore_patterns("test_*.py", "__pycache__"))
    shutil.copyfile(DRIVER_PROBE, folder / "probes" / "driver.py")
    for name, source in checks.items():
        (folder / name).write_text(check_file(source))
    return folder


def suite_to_read(folder: Path, checks: Mapping[str, str]) -> Path:
    """Like `suite_with`, but only with the files that `load_suite` reads; such a suite cannot run."""
    folder.mkdir()
    for name in ("catalogue.py", "applicable.py", "expected.py"):
        shutil.copyfile(SUITE / name, folder / name)
    for name, source in checks.items():
        (folder / name).write_text(check_file(source))
    return folder


def check_file(source: str) -> str:
    """The source of a file of checks. VALUES, if missing, declare one value for each check: `x` equals 1."""
    if "VALUES = " not in source:
        names = (name.replace("_", "-") for name in re.findall(r"def test_(\w+)", source))
        source = f"VALUES = { ({name: {'x': {'equals': 1}} for name in names})!r}\n\n{source}"
    return f"import pytest\n\n{source}"


def run_suite(
    suite: Path,
    scratch: Path,
    *options: str,
    python: str = sys.executable,
    facts: Mapping[str, Any] = FACTS,
    env: Mapping[str, str] | None = None,
    wheels: Path | None = None,
    isolated: bool = True,
) -> list[dict[str, Any]]:
    """Run *suite*; returns all events that its runner prints. By default, it uses this Python's pytest."""
    facts_file = scratch / "facts.json"
    facts_file.write_text(json.dumps(facts))
    command = [
        python,
        "-I",
        *(["-S"] if isolated else []),
        "-B",
        str(suite / "runner.py"),
        "--facts",
        str(facts_file),
    ]
    command += ["--wheels", str(wheels or scratch), *options]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def findings(events: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The events of the kind `finding` by their check."""
    return {event["id"]: event for event in events if event["event"] == "finding"}
