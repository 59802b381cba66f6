"""Run a worker function on several GPUs, one process per GPU, with a time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from smoke_tests.probe import ending, tail, where

SUITE = Path(__file__).resolve().parent
GRACE = 15.0  # seconds that the others have when a rank has died, and between SIGABRT and SIGKILL
_LOOK = 0.1  # seconds


class Ending(NamedTuple):
    """How one rank ended."""

    rank: int
    code: int | None  # its exit status, a signal's number below zero; None: it had to be stopped
    seconds: float  # from the start of the ranks to its end
    output: str
    values: Any  # what its function returned; None: it left nothing


def run_ranks(worker: str, *, limit: float, world: int | None = None, **arguments: Any) -> list[Any]:
    """The results of *worker* ("module:function" of workers/) by rank.

    :param limit: seconds for all of them; a rank that has not ended then is stopped and reported.
    :param world: the number of ranks; None: one for each GPU that torch sees.
    :param arguments: keyword arguments for the function, as JSON.
    :raises AssertionError: a rank died, failed or hung; with its number and the end of its output.
    """
    return values_of(rank_endings(worker, limit=limit, world=world, **arguments))


def rank_endings(
    worker: str,
    *,
    limit: float,
    world: int | None = None,
    env: Mapping[str, str] | None = None,
    **arguments: Any,
) -> list[Ending]:
    """As `run_ranks`, but returns how each rank ended and its output, and raises no error.

    :param env: additional environment variables.
    """
    world = world or gpus_of_torch()
    with tempfile.TemporaryDirectory(prefix="kiln-ranks-") as name:
        folder, began = Path(name), time.monotonic()
        started: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(world):
                started.append(_start(worker, rank, world, folder, env or {}, arguments))
            seconds = _watch(started, began, limit)
        finally:
            stopped = _stop(started)
        now = time.monotonic() - began
        return [
            Ending(
                rank,
                None if rank in stopped else process.returncode,
                round(seconds.get(rank, now), 1),
                (folder / f"rank-{rank}.log").read_text("utf-8", "replace"),
                _values(folder / f"rank-{rank}.json"),
            )
            for rank, process in enumerate(started)
        ]


def values_of(endings: Sequence[Ending]) -> list[Any]:
    """The results of all ranks.

    :raises AssertionError: one failed. The first failure is listed first: the others waited for that rank.
    """
    in_order = sorted(endings, key=lambda one: (one.code is None, one.seconds, one.code or 0))
    told = [words for one in in_order if (words := fault(one))]
    assert not told, "\n".join(told)
    return [one.values for one in endings]


def fault(one: Ending) -> str:
    """Why a rank failed, with its traceback or the end of its output; empty if it succeeded."""
    # At the end of a process NCCL writes its log, after the error of the process.
    lines = [line for line in one.output.splitlines() if " NCCL INFO " not in line]
    output = "\n".join(lines)
    if one.code is None:
        return f"rank {one.rank} had not ended after {one.seconds:g} s and was stopped\n{where(output)}"
    if one.code < 0:
        words = [line.strip() for line in lines if line.strip().startswith("what():")]
        return "\n".join([f"rank {one.rank} {ending(one.code)}", *words[:1], where(output)])
    if one.code:
        return f"rank {one.rank} {ending(one.code)}\n{tail(output)}"
    if one.values is None:
        return f"rank {one.rank} ended without a result\n{tail(output)}"
    return ""


def measure_group(measure: Callable[..., None], seen: Sequence[Any]) -> None:
    """The common conditions of checks with several GPUs: NCCL was used, and each rank had its own GPU."""
    measure("backend", [rank["backend"] for rank in seen], equals=["nccl"] * len(seen))
    measure("gpus", [rank["device"] for rank in seen], equals=list(range(len(seen))))


def gpus_of_torch() -> int:
    """The number of GPUs that torch may use; creates no CUDA context in this process.

    :raises AssertionError: fewer than two.
    """
    import torch

    found = torch.cuda.device_count()
    assert found >= 2, f"torch sees {found} GPU, and two are needed"
    return found


def _start(
    worker: str, rank: int, world: int, folder: Path, env: Mapping[str, str], arguments: dict[str, Any]
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-B", str(SUITE / "rank.py"), str(SUITE), worker]
    command += [str(rank), str(world), str(folder), json.dumps(arguments)]
    with (folder / f"rank-{rank}.log").open("wb") as sink:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env={**os.environ, **env}
        )


def _watch(started: Sequence[subprocess.Popen[bytes]], began: float, limit: float) -> dict[int, float]:
    """Wait until all ranks have ended or *limit* is over; after one has died, the others get a short time.
    Returns the seconds after which each ended."""
    ended: dict[int, float] = {}
    ends = began + limit
    while len(ended) < len(started) and time.monotonic() < ends:
        for rank, process in enumerate(started):
            if rank not in ended and process.poll() is not None:
                ended[rank] = time.monotonic() - began
                if process.returncode:
                    ends = min(ends, time.monotonic() + GRACE)
        time.sleep(_LOOK)
    return ended


def _stop(started: Sequence[subprocess.Popen[bytes]]) -> set[int]:
    """End the ranks that still run, and return their numbers. SIGABRT comes first, for a traceback."""
    running = {rank for rank, process in enumerate(started) if process.poll() is None}
    for number in (signal.SIGABRT, signal.SIGKILL):
        for rank in running:
            started[rank].send_signal(number)  # does nothing to one that has ended meanwhile
        _await((started[rank] for rank in running), GRACE)
    for process in started:
        process.wait()
    return running


def _await(processes: Iterable[subprocess.Popen[bytes]], seconds: float) -> None:
    ends = time.monotonic() + seconds
    for process in processes:
        while process.poll() is None and time.monotonic() < ends:
            time.sleep(_LOOK)


def _values(path: Path) -> Any:
    return json.loads(path.read_bytes()) if path.exists() else None
