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

from smoke_tests.isolation import flags
from smoke_tests.probe import ending, tail, where

SUITE = Path(__file__).resolve().parent
GRACE = 15.0  # seconds for the other ranks after one has failed, and between SIGABRT and SIGKILL
_POLL = 0.1  # seconds


class Ending(NamedTuple):
    """How one rank ended."""

    rank: int
    code: int | None  # exit status; a negative number is a signal; None: it was stopped
    seconds: float  # from the start of all ranks to the end of this rank
    output: str
    values: Any  # what its function returned; None: there is no result


def run_ranks(worker: str, *, limit: float, world: int | None = None, **arguments: Any) -> list[Any]:
    """The results of *worker* ("module:function" of workers/) by rank.

    :param limit: seconds for all ranks; a rank that is still running then is stopped and reported.
    :param world: the number of ranks; None: one for each GPU that torch sees.
    :param arguments: keyword arguments for the function, as JSON.
    :raises AssertionError: a rank failed, was killed or timed out; the message has its number and last
        output.
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

    :raises AssertionError: a rank failed. The first failure comes first, because other ranks waited for it.
    """
    in_order = sorted(endings, key=lambda rank: (rank.code is None, rank.seconds, rank.code or 0))
    faults = [message for rank in in_order if (message := fault(rank))]
    assert not faults, "\n".join(faults)
    return [rank.values for rank in endings]


def fault(ended: Ending) -> str:
    """Why a rank failed, with its traceback or the end of its output; empty if it succeeded."""
    # NCCL writes its log at the end of a process, after the error of the process.
    lines = [line for line in ended.output.splitlines() if " NCCL INFO " not in line]
    output = "\n".join(lines)
    if ended.code is None:
        return f"rank {ended.rank} timed out after {ended.seconds:g} s and was stopped\n{where(output)}"
    if ended.code < 0:
        reasons = [line.strip() for line in lines if line.strip().startswith("what():")]
        return "\n".join([f"rank {ended.rank} {ending(ended.code)}", *reasons[:1], where(output)])
    if ended.code:
        return f"rank {ended.rank} {ending(ended.code)}\n{tail(output)}"
    if ended.values is None:
        return f"rank {ended.rank} ended without a result\n{tail(output)}"
    return ""


def measure_group(measure: Callable[..., None], results: Sequence[Any]) -> None:
    """Measure the common conditions of checks with several GPUs: NCCL was used, and each rank had another
    GPU."""
    measure("backend", [rank["backend"] for rank in results])
    measure("gpus", [rank["device"] for rank in results])


def gpus_of_torch() -> int:
    """The number of GPUs that torch may use; creates no CUDA context in this process.

    :raises AssertionError: there are fewer than two.
    """
    import torch

    count = torch.cuda.device_count()
    assert count >= 2, f"torch finds {count} GPU{'' if count == 1 else 's'}, but two are needed"
    return count


def _start(
    worker: str, rank: int, world: int, folder: Path, env: Mapping[str, str], arguments: dict[str, Any]
) -> subprocess.Popen[bytes]:
    command = [sys.executable, *flags(), str(SUITE / "rank.py"), str(SUITE), worker]
    command += [str(rank), str(world), str(folder), json.dumps(arguments)]
    with (folder / f"rank-{rank}.log").open("wb") as sink:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env={**os.environ, **env}
        )


def _watch(started: Sequence[subprocess.Popen[bytes]], began: float, limit: float) -> dict[int, float]:
    """Wait until all ranks have ended: at most *limit* seconds, and a short time after one has failed.
    Returns the seconds after which each ended."""
    ended: dict[int, float] = {}
    ends = began + limit
    while len(ended) < len(started) and time.monotonic() < ends:
        for rank, process in enumerate(started):
            if rank not in ended and process.poll() is not None:
                ended[rank] = time.monotonic() - began
                if process.returncode:
                    ends = min(ends, time.monotonic() + GRACE)
        time.sleep(_POLL)
    return ended


def _stop(started: Sequence[subprocess.Popen[bytes]]) -> set[int]:
    """Stop the ranks that are still running, and return their numbers. SIGABRT first, for a traceback."""
    running = {rank for rank, process in enumerate(started) if process.poll() is None}
    for number in (signal.SIGABRT, signal.SIGKILL):
        for rank in running:
            started[rank].send_signal(number)  # no effect if the process has ended meanwhile
        _await((started[rank] for rank in running), GRACE)
    for process in started:
        process.wait()
    return running


def _await(processes: Iterable[subprocess.Popen[bytes]], seconds: float) -> None:
    ends = time.monotonic() + seconds
    for process in processes:
        while process.poll() is None and time.monotonic() < ends:
            time.sleep(_POLL)


def _values(path: Path) -> Any:
    return json.loads(path.read_bytes()) if path.exists() else None
