"""Ranks without a GPU, and without torch: whatever one does, it is named, all end in time, nothing stays."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import venv
from pathlib import Path
from typing import Any

import pytest

from smoke_tests.ranks import Ending, fault
from tests.smoke_suites import suite_with

# As much of torch as a rank asks for before it does its work.
TORCH = "from torch import cuda, distributed\n"
CUDA = "def set_device(number): pass\n\n\ndef device_count(): return 3\n"
DISTRIBUTED = (
    "def init_process_group(backend, *, init_method, rank, world_size, timeout): pass\n\n\n"
    "def destroy_process_group(): pass\n"
)
ACTS = """
import os, signal, subprocess, sys, time
from pathlib import Path


def greet(rank, world, words="", seconds=0.0):
    time.sleep(seconds * (world - rank))  # the last one first
    print(f"{words} from {rank}")
    return {"rank": rank, "world": world, "words": words, "env": os.environ.get("KILN_TEST")}


def die(rank, world, number):
    if rank == 1:
        os.kill(os.getpid(), number)
    time.sleep(600)


def fail(rank, world):
    if rank == 1:
        raise ValueError("no such thing as rank one")
    wait_for_the_others()


def wait_for_the_others():
    time.sleep(600)


def hang(rank, world):
    if rank == 2:
        wait_for_the_others()
    return rank


def hang_stubbornly(rank, world):
    if rank == 2:
        signal.signal(signal.SIGABRT, signal.SIG_IGN)
        wait_for_the_others()
    return rank


def leave(rank, world):
    if rank == 1:
        os._exit(0)
    return rank


def sit(rank, world, folder):
    Path(folder, str(rank)).write_text(str(os.getpid()))
    time.sleep(600)
"""
DRIVE = """
import json, runpy, sys
from pathlib import Path
suite, scratch, grace, call, options = sys.argv[1:]
runpy.run_path(f"{suite}/one.py")["load_suite"](Path(suite))
import tempfile
tempfile.tempdir = scratch
from smoke_tests import ranks
ranks.GRACE = float(grace)
try:
    print(json.dumps(getattr(ranks, call)(**json.loads(options))))
except AssertionError as error:
    print(json.dumps({"refused": str(error)}))
"""


class Stage:
    """A suite with workers that act, and a Python whose torch is a stub."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.scratch = folder, folder / "scratch"
        self.scratch.mkdir()
        self.suite = suite_with(folder / "suite", {})
        (self.suite / "workers" / "acts.py").write_text(ACTS)
        venv.create(folder / "venv", with_pip=False, symlinks=True)
        torch = next((folder / "venv" / "lib").glob("python*")) / "site-packages" / "torch"
        torch.mkdir()
        for name, source in {"__init__": TORCH, "cuda": CUDA, "distributed": DISTRIBUTED}.items():
            (torch / f"{name}.py").write_text(source)

    def start(self, worker: str, *, call: str = "run_ranks", grace: float = 1.0, **options: Any) -> Any:
        """A process that runs the ranks."""
        command = [str(self.folder / "venv" / "bin" / "python"), "-I", "-B", "-c", DRIVE, str(self.suite)]
        command += [str(self.scratch), str(grace), call, json.dumps({"worker": f"acts:{worker}", **options})]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def run(self, worker: str, **options: Any) -> Any:
        """What came of it, and nothing has stayed."""
        process = self.start(worker, **options)
        told = json.loads(process.communicate(timeout=300)[0])
        assert list(self.scratch.iterdir()) == []
        assert not running(str(self.suite))
        return told


def running(word: str) -> list[int]:
    """Processes, no zombies, with *word* on their command lines."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if word.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("ranks"))


def test_values_come_back_in_order_of_the_ranks(stage: Stage) -> None:
    """Whoever ends first; arguments arrive, and as many ranks start as torch sees GPUs."""
    told = stage.run("greet", limit=300, words="hello", seconds=0.2)
    assert [one["rank"] for one in told] == [0, 1, 2]
    assert told[0] == {"rank": 0, "world": 3, "words": "hello", "env": None}


def test_each_ending_is_told_to_who_asks(stage: Stage) -> None:
    told = stage.run("greet", call="rank_endings", limit=300, world=2, words="x", env={"KILN_TEST": "set"})
    assert [(rank, code, output) for rank, code, _, output, _ in told] == [
        (0, 0, "x from 0\n"),
        (1, 0, "x from 1\n"),
    ]
    assert [values["env"] for *_, values in told] == ["set", "set"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_rank_that_is_killed_is_named_first_and_the_others_do_not_wait_for_ever(
    number: signal.Signals, stage: Stage
) -> None:
    told = stage.run("die", limit=600, number=int(number))["refused"]
    assert told.startswith(f"rank 1 was killed by {number.name}\n")
    assert "rank 0 had not ended after" in told
    assert "rank 2 had not ended after" in told
    if number == signal.SIGSEGV:
        assert "in die" in told.split("rank 0")[0]


def test_a_rank_that_raises_is_told_with_its_words(stage: Stage) -> None:
    told = stage.run("fail", limit=600)["refused"]
    assert told.startswith("rank 1 ended with exit code 1\n")
    assert "ValueError: no such thing as rank one" in told


@pytest.mark.parametrize("worker", ["hang", "hang_stubbornly"])
def test_a_rank_that_hangs_is_named_and_ends_at_the_limit(worker: str, stage: Stage) -> None:
    for limit in (3, 30, 300):  # a busy machine takes longer to end the others
        if "rank 0" not in (told := stage.run(worker, limit=limit)["refused"]):
            break
    assert told.startswith("rank 2 had not ended after ")
    assert "rank 0" not in told
    assert ("in wait_for_the_others" in told) is (worker == "hang")


def test_where_a_rank_hangs_it_is_told_as_stopped_and_the_others_keep_their_values(stage: Stage) -> None:
    for limit in (3, 30, 300):
        told = stage.run("hang", call="rank_endings", limit=limit)
        if told[0][1] == told[1][1] == 0:
            break
    assert [(code, values) for _, code, _, _, values in told] == [(0, 0), (0, 1), (None, None)]
    assert told[2][2] >= 3


def test_a_rank_that_leaves_without_a_result_has_failed(stage: Stage) -> None:
    assert stage.run("leave", limit=300)["refused"].startswith("rank 1 ended without a result")


def test_ranks_go_with_the_check_that_started_them(stage: Stage, tmp_path: Path) -> None:
    """Killed so that it cannot end them itself."""
    process = stage.start("sit", limit=600, folder=str(tmp_path))
    patience = time.monotonic() + 300
    while len(list(tmp_path.iterdir())) < 3 and time.monotonic() < patience:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    while running(str(stage.suite)) and time.monotonic() < patience:
        time.sleep(0.05)
    assert running(str(stage.suite)) == []


def test_what_a_rank_died_of_is_told_and_not_what_nccl_was_asked_to_tell() -> None:
    """C++ says first what the exception was; NCCL's lines come last of all."""
    nccl = "".join(
        f"host:1:9 [0] NCCL INFO Channel {at:02}/0 : 0[0] -> 1[1] via P2P/IPC\n" for at in range(30)
    )
    raised = fault(Ending(1, 1, 2.0, f"ValueError: no\n{nccl}", None))
    assert raised == "rank 1 ended with exit code 1\nValueError: no"
    dump = "Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  File in absent\n"
    died = fault(Ending(0, -6, 2.0, f"terminate called\n  what():  Watchdog caught it\n{dump}{nccl}", None))
    assert died.splitlines()[:3] == [
        "rank 0 was killed by SIGABRT",
        "what():  Watchdog caught it",
        "Fatal Python error: Aborted",
    ]
    assert died.splitlines()[-1] == "  File in absent"
