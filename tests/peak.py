"""Run a torchkiln command in a separate process, and measure its peak memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests import forked
from torchkiln.util.places import ROOT

LIMIT = 400  # MiB: tests with hostile input require a lower peak


@dataclass(frozen=True, kw_only=True)
class Run:
    """The result of a command; `peak` is its peak resident memory in MiB."""

    code: int
    out: str
    err: str
    peak: int


def run(*argv: str, folder: Path, env: Mapping[str, str] | None = None, seconds: float = 120.0) -> Run:
    """Run `torchkiln ARGV` in *folder*; a process that hangs is killed after *seconds*."""
    cache = {"TORCHKILN_CACHE": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    environ = {**os.environ, **cache, **(env or {})}
    done = forked.run(
        argv, env=environ, cwd=folder, program="-c", target="tests.peak:measured", timeout=seconds
    )
    err, _, peak = done.stderr.rpartition("PEAK ")
    return Run(code=done.returncode, out=done.stdout, err=err, peak=int(peak))


def measured() -> None:
    """Run the torchkiln command in sys.argv; then print the peak memory of this process to stderr."""
    from torchkiln.cli import main

    try:
        main(sys.argv[1:])
    finally:
        status = Path("/proc/self/status").read_text()
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        sys.stderr.write(f"PEAK {int(peak.split()[1]) >> 10}\n")
