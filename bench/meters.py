"""Measure a command: wall time, core-seconds and peak memory of its process tree."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.results import STAGES, Sample

_PERIOD = 0.1  # seconds between two samples
_TICK = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """A command failed; the message is the end of its output."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessSample:
    """One process, with times in core-seconds; `reaped` is the time of its children that have ended."""

    parent: int
    command: str
    own: float
    reaped: float


@dataclass
class Watch:
    """The last sample of each process and thread of a process tree."""

    root: int
    peak: int = 0
    seen: dict[int, ProcessSample] = field(default_factory=dict)
    threads: dict[int, float] = field(default_factory=dict)  # core-seconds of the root process


def measure(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    cores: frozenset[int] | None = None,
) -> tuple[Sample, bytes]:
    """Run *argv* on *cores* (None: all); return the measurements and its stdout.

    Core-seconds are exact, from wait4 at the end; memory and stages are sampled ten times a second.

    :raises Failed: the exit code is not 0.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as log:
        started = time.perf_counter()
        process = subprocess.Popen(
            [*argv],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None,
        )
        watch, over = Watch(process.pid), threading.Event()
        looker = threading.Thread(target=_look_until, args=(watch, over), daemon=True)
        looker.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            wall = time.perf_counter() - started
            if process.returncode is None:  # the command still runs: this process was interrupted
                process.terminate()
                process.wait()
            over.set()
            looker.join()
        for stream in (out, log):
            stream.seek(0)
        if process.returncode:
            stderr = log.read()[-2000:].decode(errors="replace")
            raise Failed(f"exit code {process.returncode}: {stderr}")
        stages = stage_seconds(watch, usage.ru_utime + usage.ru_stime)
        sample = Sample(wall=wall, user=usage.ru_utime, system=usage.ru_stime, peak=watch.peak, stages=stages)
        return sample, out.read()


def stage_seconds(watch: Watch, total: float) -> tuple[tuple[str, float], ...]:
    """Core-seconds by stage, which command lines and threads show.

    download: the threads of the root process except the first; convert: worker processes; byte-code: children
    of workers; rest: the rest of *total* (start, plan, layout, and processes that no sample caught).
    """
    workers = {pid for pid, one in watch.seen.items() if "multiprocessing.spawn" in one.command}
    compilers = {
        pid
        for pid, one in watch.seen.items()
        if "compile_worker" in one.command and one.parent not in workers
    }
    found = dict.fromkeys(STAGES, 0.0)
    found["download"] = sum(spent for thread, spent in watch.threads.items() if thread != watch.root)
    found["convert"] = sum(watch.seen[pid].own for pid in workers)
    found["byte-code"] = sum(watch.seen[pid].reaped for pid in workers)
    found["byte-code"] += sum(watch.seen[pid].own for pid in compilers)
    found["rest"] = max(0.0, total - sum(found.values()))
    return tuple(found.items())


def parse_stat(text: str) -> tuple[int, float, float]:
    """The parent's PID, the core-seconds of the process, and those of its reaped children: /proc/PID/stat."""
    fields = text.rpartition(")")[2].split()
    user, system, child_user, child_system = (int(value) for value in fields[11:15])
    return int(fields[1]), (user + system) / _TICK, (child_user + child_system) / _TICK


def parse_pss(text: str) -> int:
    """The PSS in a /proc/PID/smaps_rollup, in bytes."""
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def tree_of(root: int, parents: Mapping[int, int]) -> set[int]:
    """*root* and all its descendants."""
    found, grown = {root}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        grown = bool(more)
        found |= more
    return found


def _look_until(watch: Watch, over: threading.Event) -> None:
    while not over.wait(_PERIOD):
        _look(watch)


def _look(watch: Watch) -> None:
    """Take a sample; processes can end while it is taken."""
    stats = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (text := _read(f"/proc/{entry.name}/stat")):
            stats[int(entry.name)] = parse_stat(text)
    memory = 0
    for pid in tree_of(watch.root, {pid: parent for pid, (parent, _, _) in stats.items()}):
        if pid not in stats:
            continue
        parent, own, reaped = stats[pid]
        command = _read(f"/proc/{pid}/cmdline").replace("\0", " ")
        memory += parse_pss(_read(f"/proc/{pid}/smaps_rollup"))
        if not command and pid in watch.seen:  # a zombie
            command = watch.seen[pid].command
        watch.seen[pid] = ProcessSample(parent=parent, command=command, own=own, reaped=reaped)
    watch.peak = max(watch.peak, memory)
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{watch.root}/task")]
    except OSError:
        return
    for thread in threads:
        if text := _read(f"/proc/{watch.root}/task/{thread}/stat"):
            watch.threads[thread] = parse_stat(text)[1]


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""
