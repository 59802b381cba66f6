"""Draw interruptions of runs from a seed: the signal, the process that gets it, and the time or event."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.campaign.scene import Ran, Trial
from tests.campaign.tracer import OPS, PHASES, Counts, Plan, Shared
from tests.campaign.trials import STARTS, Disturbance, Reference

_INTERRUPTED = r"error: interrupted; completed work is kept"
_TERMINATED = r"error: terminated; completed work is kept"
_WORKER = r"error: a worker process was killed"
# name → signal, target, exit codes, message. The code is -2 or -15 before torchkiln has set its handlers.
_KILLS: dict[str, tuple[signal.Signals, str, tuple[int, ...], str]] = {
    "Ctrl-C": (signal.SIGINT, "group", (130, -2), _INTERRUPTED),
    "SIGINT": (signal.SIGINT, "root", (130, -2), _INTERRUPTED),
    "SIGTERM": (signal.SIGTERM, "root", (143, -15), _TERMINATED),
    "SIGTERM of all": (signal.SIGTERM, "group", (143, -15), _TERMINATED),
    "kill -9": (signal.SIGKILL, "root", (-9,), ""),
    "kill -9 of all": (signal.SIGKILL, "group", (-9,), ""),
    "kill -9 of a worker": (signal.SIGKILL, "self", (6,), _WORKER),
}
_WEIGHTS = (4, 2, 3, 1, 4, 2, 4)
_START_WEIGHTS = (4, 3, 2, 3)
# Weights of the operations. Renames, links and syncs are rare, but their interruption is the most critical.
_OP_WEIGHTS = {"write": 5, "read": 4, "rename": 5, "link": 1, "unlink": 1, "sync": 1}


def draw(seed: int, reference: Reference) -> Iterator[Disturbance]:
    """An endless sequence of instants, determined by *seed* and the counts of *reference*."""
    dice = random.Random(seed)
    while True:
        kind = dice.choices(list(_KILLS), _WEIGHTS)[0]
        start = dice.choices(STARTS, _START_WEIGHTS)[0]
        yield (_by_event if dice.random() < 0.6 else _by_clock)(dice, kind, start, reference)


def _by_event(dice: random.Random, kind: str, start: str, reference: Reference) -> Disturbance:
    number, target, codes, sentence = _KILLS[kind]
    totals = reference.counts[start]
    role = "worker" if target == "self" else "parent" if dice.random() < 0.7 else "worker"
    possible = [op for op in OPS if totals[role, op]]
    op = dice.choices(possible, [_OP_WEIGHTS[op] for op in possible])[0]
    plan = Plan(
        role=role,
        op=op,
        count=dice.randint(1, totals[role, op]),
        phase=dice.choice(PHASES if op == "write" else ("before", "after")),
        signal=number,
        target=target,
    )
    return Disturbance(
        group="instant",
        name=kind,
        codes=codes,
        sentence=sentence,
        start=start,
        detail={"by": "event", "role": role, "op": op, "count": plan.count, "phase": plan.phase},
        run=lambda trial: trial.run(plan=plan),
        late=lambda ran: not ran.fired or _was_over(ran),
    )


def _by_clock(dice: random.Random, kind: str, start: str, reference: Reference) -> Disturbance:
    number, target, codes, sentence = _KILLS[kind]
    moment = round(dice.uniform(0.0, reference.seconds[start]), 3)
    pick = dice.random()
    return Disturbance(
        group="instant",
        name=kind,
        codes=codes,
        sentence=sentence,
        start=start,
        detail={"by": "clock", "seconds": moment},
        run=lambda trial: trial.run(act=_after(moment, number, target, pick)),
        late=lambda ran: not ran.hit or _was_over(ran),
    )


def _was_over(ran: Ran) -> bool:
    """Whether the run had finished its work before the signal."""
    return ran.code == 0 and bool(ran.out)


def _after(
    seconds: float, number: signal.Signals, target: str, pick: float
) -> Callable[[Shared, subprocess.Popen[str]], Counts | None]:
    def act(shared: Shared, process: subprocess.Popen[str]) -> Counts | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return None
        victim = process.pid
        if target == "self":
            workers = _workers(process.pid)
            if not workers:
                return None
            victim = workers[int(pick * len(workers))]
        flying = shared.flying()
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if target == "group" else os.kill)(victim, number)
            return flying
        return None

    return act


def _workers(parent: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for pid in task.read_text().split():
                if b"multiprocessing.spawn" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(int(pid))
    return sorted(found)


def twice(trial: Trial) -> Ran:
    """Send SIGINT four times, like a user who presses Ctrl-C again and again."""

    def act(shared: Shared, process: subprocess.Popen[str]) -> Counts:
        while process.poll() is None and not shared.totals()["parent", "read"]:
            time.sleep(0.01)
        for _ in range(4):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.05)
        return shared.flying()

    return trial.run(act=act)


IMPATIENT = Disturbance(
    group="instant",
    name="Ctrl-C four times",
    codes=(130,),
    sentence=_INTERRUPTED,
    detail={"by": "clock", "seconds": 0},
    run=twice,
)
