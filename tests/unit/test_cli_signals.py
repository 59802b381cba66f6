"""Ctrl-C and SIGTERM: exit code and sentence, in order the first time, at once the second."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from torchkiln.index import download
from torchkiln.index.lazy import LazyIndex
from torchkiln.model.cell import Source
from torchkiln.model.lock import LockedWheel
from torchkiln.store.store import Store

# Short sleeps: Python runs its handler between two calls, and one long call may begin just before the signal.
WORK = """
import sys, time
import torchkiln.cli as cli
def wait():
    for _ in range(3000):
        time.sleep(0.02)
def work(**_):
    try:
        print("working", flush=True)
        wait()
    finally:
        print("winding down", flush=True)
        if sys.argv[1] == "slowly":
            wait()
cli.torchkiln.main = work
cli.main([])
"""


def ended_by(*signals: signal.Signals) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of work that gets *signals*, the second while it winds down."""
    how = "slowly" if len(signals) > 1 else "swiftly"
    with subprocess.Popen(
        [sys.executable, "-c", WORK, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        said = ""
        for number in signals:
            said += process.stdout.readline()
            process.send_signal(number)
        code = process.wait(60)
        return code, said + process.stdout.read(), process.stderr.read()


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
@pytest.mark.parametrize("times", [1, 2])
def test_signals(number: signal.Signals, code: int, word: str, times: int) -> None:
    """Whoever cannot wait for the clean-up gets the same sentence, for the next run cleans up."""
    found, out, err = ended_by(*[number] * times)
    assert (found, out.split("\n")[:2]) == (code, ["working", "winding down"])
    assert err == f"error: {word}; completed work is kept, the next run continues from there\n"


# A process that was started and not yet told what it is to be: for half a second, here, instead of a moment.
STARTING = """
import os, signal, threading, time
from multiprocessing import util
import torchkiln.cli as cli
from torchkiln.util.processes import Workers
spawn = util.spawnv_passfds
def slow_spawn(path, args, fds):
    pid = spawn(path, args, fds)
    if "spawn_main" in str(args):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(25):
            time.sleep(0.02)
    return pid
util.spawnv_passfds = slow_spawn
def work(**_):
    workers = Workers(1, os.getpid)
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
    finally:
        workers.submit(os.getpid).result()
cli.torchkiln.main = work
if __name__ == "__main__":
    cli.main([])
"""


def test_a_worker_that_is_just_starting_says_nothing_when_all_ends_at_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(STARTING)
    found = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stderr) == (
        130,
        "error: interrupted; completed work is kept, the next run continues from there\n",
    )


def test_the_index_is_opened_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Many threads want it at the same moment, and opening it asks pip, which takes a second of processor."""
    opened: list[object] = []
    together = threading.Barrier(8)

    class Index:
        def tail(self, wheel: LockedWheel, count: int) -> bytes:
            return b""

    def slowly(*_: object) -> Index:
        opened.append(None)
        threading.Event().wait(0.2)
        return Index()

    monkeypatch.setattr(download, "open_downloads", slowly)
    index = LazyIndex(Store(tmp_path))
    wheel = LockedWheel(name="x", version="1", filename="x", sha256="0", size=1, index=Source.DEFAULT)

    def want() -> None:
        together.wait()
        index.tail(wheel, 1)

    threads = [threading.Thread(target=want) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 1


ORPHAN = """
import multiprocessing, os, sys
from torchkiln.build.worker import start_worker
start_worker(multiprocessing.Event(), [], int(sys.argv[1]))
sys.stdin.read()
"""


def test_a_worker_whose_parent_died_before_it_looked_ends() -> None:
    """Its parent is then another process, which lives on."""
    with subprocess.Popen([sys.executable, "-c", ORPHAN, "0"], stdin=subprocess.PIPE) as process:
        try:
            assert process.wait(60) == 1
        finally:
            process.kill()
