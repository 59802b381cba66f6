"""Calls in processes of their own: answers, errors, deaths, and what no pool may do: wait for ever."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchkiln.util.places import ROOT
from torchkiln.util.processes import WorkerDied, Workers

_started_with: list[str] = []


def start(word: str = "") -> None:
    _started_with.append(word)


def twice(number: int) -> tuple[int, int, list[str]]:
    return 2 * number, os.getpid(), _started_with


def refuse(word: str) -> None:
    raise ValueError(word)


def die(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail_at_start() -> None:
    raise RuntimeError("no memory for this")


def hears_ctrl_c() -> bool:
    return signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_answers_come_from_at_most_so_many_processes_each_started_once() -> None:
    with Workers(2, start, "hello") as workers:
        answers = [future.result() for future in [workers.submit(twice, number) for number in range(20)]]

    assert [answer for answer, _, _ in answers] == [2 * number for number in range(20)]
    assert all(words == ["hello"] for _, _, words in answers)
    processes = {process for _, process, _ in answers}
    assert len(processes) <= 2
    assert os.getpid() not in processes
    assert not any(Path("/proc", str(process)).exists() for process in processes)


def test_an_error_comes_back_with_the_place_where_it_was_raised() -> None:
    with Workers(1, start) as workers, pytest.raises(ValueError, match="no good") as caught:
        workers.submit(refuse, "no good").result()

    assert "in refuse" in str(caught.value.__cause__)


def test_a_process_that_died_is_told_and_another_takes_its_place() -> None:
    with Workers(1, start) as workers:
        with pytest.raises(WorkerDied):
            workers.submit(die, 0).result()
        assert workers.submit(twice, 3).result()[0] == 6


def test_a_process_that_cannot_start_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with Workers(1, fail_at_start) as workers, pytest.raises(WorkerDied):
        workers.submit(twice, 1).result()

    assert "no memory for this" in capfd.readouterr().err


def test_killed_workers_answer_nothing_more(tmp_path: Path) -> None:
    """What was under way is told as dead; what waited for its turn is never begun."""
    with Workers(1, start) as workers:
        workers.submit(twice, 1).result()
        running = workers.submit(signal.pause)
        waiting = [workers.submit(Path.touch, tmp_path / str(number)) for number in range(3)]
        while not running.running():
            time.sleep(0.01)
        workers.kill()
        with pytest.raises(WorkerDied):
            running.result()

    assert all(future.cancelled() for future in waiting)
    assert list(tmp_path.iterdir()) == []


def test_workers_of_a_killed_parent_end_without_a_word(tmp_path: Path) -> None:
    """Killed with an answer unread: to the worker the connection is then reset, not closed."""
    code = """
import os, signal, time
from torchkiln.util.processes import Workers
if __name__ == "__main__":
    workers = Workers(1, print)
    workers.submit(time.sleep, 0).result()
    workers.submit(time.sleep, 0.3)
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGSTOP)
"""
    (tmp_path / "parent.py").write_text(code)
    with subprocess.Popen(
        [sys.executable, tmp_path / "parent.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    ) as parent:
        os.waitpid(parent.pid, os.WUNTRACED)  # until it has stopped
        time.sleep(0.6)
        parent.kill()
        _, said = parent.communicate()  # until the worker too has closed its end

    assert said == ""


def test_ctrl_c_is_the_main_threads() -> None:
    with Workers(1, start) as workers:
        assert workers.submit(hears_ctrl_c).result() is False


def test_too_little_address_space_is_refused_before_anything_waits() -> None:
    limit = 300_000_000
    code = "from torchkiln.util.processes import Workers; Workers(2, print)"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 1
    assert "MemoryError: ulimit -v is 300 MB, 2000 MB are needed" in ran.stderr
