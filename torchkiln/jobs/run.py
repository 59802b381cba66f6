"""Runs jobs on an engine, each when those that it needs are finished; failed and lost ones again."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from typing import Any, Protocol

from torchkiln.errors import BuildFailed, ConfigError, Stale, Unresolvable, VerificationFailed
from torchkiln.jobs.graph import Job
from torchkiln.store.store import cache_root
from torchkiln.util.strict_json import json_of

PAUSES = (1.0, 10.0, 60.0)  # seconds before each further attempt
_NOT_AGAIN = frozenset(each.exit_code for each in (ConfigError, Unresolvable, Stale))
_ELSEWHERE = -1  # the code of a job that was not run, because it failed on the same machine before
_REFUSALS = 100  # then the machine gets the job nevertheless: there may be no other
_REFUSAL = 0.2  # seconds


class Engine(Protocol):
    """What `run` needs of a `concurrent.futures.Executor`."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        """Call *function*, which can be imported by name, with *arguments* in any process on any machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a process of a job ended. `code` is 0, or the exit code of the error."""

    code: int
    digest: str = ""
    how: str = ""  # of a layer: "made", "reused", "there"
    machine: str = ""  # host and cache
    seconds: float = 0.0
    error: str = ""  # or the warnings of a process that ended well
    hint: str = ""


def execute(arguments: Sequence[str], pause: float = 0.0, failed_on: Collection[str] = ()) -> Outcome:
    """Run torchkiln with *arguments* in a process of its own, on the machine that calls this function.

    :param failed_on: machines that do not run it, because a full disk fails fast and would get all jobs.
    """
    machine = this_machine()
    if machine in failed_on:
        time.sleep(_REFUSAL)
        return Outcome(code=_ELSEWHERE, machine=machine)
    time.sleep(pause)
    started = time.monotonic()
    argv = [sys.executable, "-m", "torchkiln", *arguments, "--json"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    found, fault = _last_object(done.stdout), _last_object(done.stderr)
    digest, warnings = str(found.get("digest", "")), re.findall("warning: .*", done.stderr)
    return Outcome(
        code=done.returncode or (0 if digest else BuildFailed.exit_code),
        digest=digest,
        how=str(found.get("how", "")),
        machine=machine,
        seconds=time.monotonic() - started,
        error=str(fault.get("error", "\n".join(warnings) if digest else done.stderr[-500:])),
        hint=str(fault.get("hint", "")),
    )


def this_machine() -> str:
    """The name of this machine's cache: jobs with the same cache fail for the same reasons."""
    return f"{platform.node()}:{cache_root()}"


def _last_object(text: str) -> dict[str, Any]:
    """The JSON object in the last line of *text* that has one."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    return dict(json_of(lines[-1].encode())) if lines else {}


def run(
    jobs: Iterable[Job],
    engine: Engine,
    finished: Callable[[Job, Outcome], None],
    *,
    pauses: Sequence[float] = PAUSES,
) -> None:
    """Run all *jobs*; those that need a failed one are not run.

    :param finished: called with each job's outcome, that of the last attempt if it failed.
    """
    by_name = {job.name: job for job in jobs}
    sorter = TopologicalSorter({name: job.needs for name, job in by_name.items()})
    sorter.prepare()
    running: dict[Future[Outcome], tuple[Job, tuple[Outcome, ...]]] = {}
    while True:
        for name in sorter.get_ready():
            running[engine.submit(execute, by_name[name].arguments)] = (by_name[name], ())
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            job, earlier = running.pop(future)
            outcome = _checked(job, future)
            failed = [each for each in (*earlier, outcome) if each.code != _ELSEWHERE]
            if outcome.code and outcome.code not in _NOT_AGAIN and len(failed) <= len(pauses):
                refused = len(earlier) + 1 - len(failed)
                machines = {each.machine for each in failed} - {"", this_machine()}
                pause = 0.0 if outcome.code == _ELSEWHERE else pauses[len(failed) - 1]
                avoided = tuple(machines) if refused < _REFUSALS else ()
                running[engine.submit(execute, job.arguments, pause, avoided)] = (job, (*earlier, outcome))
                continue
            if not outcome.code:
                sorter.done(job.name)
            finished(job, outcome)


def _checked(job: Job, future: Future[Outcome]) -> Outcome:
    """The outcome of *job*; a digest that its lock does not record is an error, also of a worker."""
    try:
        outcome = future.result()
    except Exception as error:  # each engine has its own for a lost worker
        return Outcome(code=BuildFailed.exit_code, error=f"the worker was lost: {error}")
    if outcome.code or job.digest in (None, outcome.digest):
        return outcome
    return replace(
        outcome,
        code=VerificationFailed.exit_code,
        error=f"expected {job.digest}, but {outcome.machine} returned {outcome.digest}",
        hint="use only workers that you trust; nothing that this worker made is used",
    )
