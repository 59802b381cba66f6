"""Run a program to its end, and capture what it prints."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def run_program(argv: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Exit code, stdout and stderr of *argv*, as text. *options*: see `subprocess.run`."""
    return subprocess.run(argv, capture_output=True, text=True, **{"check": False, **options})
