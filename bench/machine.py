"""Describe the machine and versions of a benchmark, without names of hosts, users or folders."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torchkiln.util.places import ROOT

_PACKAGES = ("torchkiln", "deflate", "isal", "requests", "urllib3")
_PROGRAMS = {"curl": "curl --version", "gzip": "gzip --version", "pigz": "pigz --version"}


def describe() -> dict[str, Any]:
    """Machine, versions, commit and date, as JSON values."""
    found = {name: version(name) for name in _PACKAGES} | {"python": platform.python_version()}
    for name, command in _PROGRAMS.items():
        if shutil.which(name):
            done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
            number = re.search(r"\d+(\.\d+)+", done.stdout + done.stderr)
            found[name] = number.group() if number else "unknown"
    return {
        "when": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "cpu": _field("/proc/cpuinfo", "model name"),
            "memory_gib": round(int(_field("/proc/meminfo", "MemTotal").split()[0]) / (1 << 20), 1),
            "kernel": f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
        },
        "versions": found,
        # The load average before the first run: it shows whether the machine was idle.
        "load": round(os.getloadavg()[0], 2),
    }


def _commit() -> str:
    """The short commit id, with a + if files differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "torchkiln", "bench", "images")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def _field(file: str, name: str) -> str:
    """The value of the first line `name: value`."""
    for line in Path(file).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"
