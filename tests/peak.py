"""A torchkiln command in a process of its own → how it ended, and the most memory that it had."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchkiln.util.places import ROOT

LIMIT = 400  # MiB for hostile input
_CHILD = """
import sys
from torchkiln.cli import main
try:
    main(sys.argv[1:])
finally:
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print("PEAK", int(peak.split()[1]) >> 10, file=sys.stderr)
"""


@dataclass(frozen=True, kw_only=True)
class Run:
    """How a command ended. `peak`: MiB."""

    code: int
    out: str
    err: str
    peak: int


def run(*argv: str, folder: Path, env: Mapping[str, str] | None = None, seconds: float = 120.0) -> Run:
    """`torchkiln ARGV` in *folder*; *seconds* only ends what hangs."""
    cache = {"TORCHKILN_CACHE": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, *argv],
        cwd=folder,
        env={**os.environ, **cache, **(env or {})},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    err, _, peak = done.stderr.rpartition("PEAK ")
    return Run(code=done.returncode, out=done.stdout, err=err, peak=int(peak))
