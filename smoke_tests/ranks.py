"""Worker, number of GPUs -> what each rank saw: one process a GPU, and an end to all of them in time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from smoke_tests.probe import ending, tail, where

SUITE = Path(__file__).resolve().parent
GRACE = 15.0  # seconds that the others have when a rank has died, and between SIGABRT and SIGKILL
_LOOK = 0.1  # seconds


def run_ranks(worker: str, *, limit: float, world: int | None = None, **arguments: Any) -> list[Any]:
    """What *worker* ("module:function" of workers/) returned on each rank, in order.

    :param limit: seconds for all of them; a rank that has not ended then is killed and named.
    :param world: how many ranks; None: one for each GPU that torch sees.
    :param arguments: keywords for the function, as JSON holds them.
    :raises AssertionError: a rank died, failed or hung: which one, how, and its last words.
    """
    world = world or gpus_of_torch()
    with tempfile.TemporaryDirectory(prefix="kiln-ranks-") as folder:
        started = [_start(worker, rank, world, folder, arguments) for rank in range(world)]
        try:
            _wait(started, time.monotonic() + limit)
        finally:
            hung = _end(started)
        told = [_fault(rank, process, hung, folder, limit) for rank, process in enumerate(started)]
        assert not any(told), "\n".join(filter(None, told))
        return [json.loads((Path(folder) / f"rank-{rank}.json").read_bytes()) for rank in range(world)]


def gpus_of_torch() -> int:
    """How many GPUs torch may use; no context is made in this process.

    :raises AssertionError: fewer than two.
    """
    import torch

    found = torch.cuda.device_count()
    assert found >= 2, f"torch sees {found} GPU, and two are needed"
    return found


def _start(
    worker: str, rank: int, world: int, folder: str, arguments: dict[str, Any]
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-B", str(SUITE / "rank.py"), str(SUITE), worker]
    command += [str(rank), str(world), folder, json.dumps(arguments)]
    with (Path(folder) / f"rank-{rank}.log").open("wb") as sink:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)


def _wait(started: list[subprocess.Popen[bytes]], ends: float) -> None:
    """Until all have ended, or *ends*; when one has died the others, who may wait for it, get little more."""
    while time.monotonic() < ends and any(process.poll() is None for process in started):
        if any(process.returncode for process in started):
            ends = min(ends, time.monotonic() + GRACE)
        time.sleep(_LOOK)


def _end(started: list[subprocess.Popen[bytes]]) -> set[int]:
    """The ranks that had to be ended."""
    hung = {rank for rank, process in enumerate(started) if process.poll() is None}
    for number in (signal.SIGABRT, signal.SIGKILL):
        for process in started:
            if process.poll() is None:
                process.send_signal(number)
        patience = time.monotonic() + GRACE
        while time.monotonic() < patience and any(process.poll() is None for process in started):
            time.sleep(_LOOK)
    for process in started:
        process.wait()
    return hung


def _fault(
    rank: int, process: subprocess.Popen[bytes], hung: set[int], folder: str, limit: float
) -> str | None:
    output = (Path(folder) / f"rank-{rank}.log").read_text("utf-8", "replace")
    if rank in hung:
        return f"rank {rank} had not ended when it was stopped (limit {limit:g} s)\n{where(output)}"
    if process.returncode:
        return f"rank {rank} {ending(process.returncode)}\n{tail(output)}"
    return None
