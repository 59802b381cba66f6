"""Calls in worker processes, and locks of the kernel (flock) that name their holders."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.programs import run_program
from torchkiln.store.file_locks import Holder, clear, hold, holder, in_use
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


def test_the_number_of_processes_is_limited_and_each_starts_once() -> None:
    with Workers(2, start, "hello") as workers:
        answers = [future.result() for future in [workers.submit(twice, number) for number in range(20)]]

    assert [answer for answer, _, _ in answers] == [2 * number for number in range(20)]
    assert all(words == ["hello"] for _, _, words in answers)
    processes = {process for _, process, _ in answers}
    assert len(processes) <= 2
    assert os.getpid() not in processes
    assert not any(Path("/proc", str(process)).exists() for process in processes)


def test_an_error_has_the_traceback_of_the_worker() -> None:
    with Workers(1, start) as workers, pytest.raises(ValueError, match="no good") as caught:
        workers.submit(refuse, "no good").result()

    assert "in refuse" in str(caught.value.__cause__)


def test_a_dead_process_is_reported_and_replaced() -> None:
    with Workers(1, start) as workers:
        with pytest.raises(WorkerDied):
            workers.submit(die, 0).result()
        assert workers.submit(twice, 3).result()[0] == 6


def test_a_process_that_cannot_start_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    with Workers(1, fail_at_start) as workers, pytest.raises(WorkerDied):
        workers.submit(twice, 1).result()

    assert "no memory for this" in capfd.readouterr().err


def test_killed_workers_return_no_results(tmp_path: Path) -> None:
    """A call that runs is reported as dead. A call that waits is never started."""
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


def test_workers_of_a_killed_parent_end_silently(tmp_path: Path) -> None:
    """If an unread answer is in it, the worker's connection to the killed parent is reset, and not closed."""
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
        os.waitpid(parent.pid, os.WUNTRACED)  # wait until it is stopped
        time.sleep(0.6)
        parent.kill()
        _, stderr = parent.communicate()  # also waits for the worker, which holds stderr

    assert stderr == ""


def test_ctrl_c_is_handled_by_the_main_thread() -> None:
    with Workers(1, start) as workers:
        assert workers.submit(hears_ctrl_c).result() is False


def test_too_little_address_space_is_refused_at_once() -> None:
    limit = 300_000_000
    code = "from torchkiln.util.processes import Workers; Workers(2, print)"
    ran = run_program(
        [sys.executable, "-c", code],
        cwd=ROOT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )

    assert ran.returncode == 1
    assert "MemoryError: ulimit -v is 300 MB, 2000 MB are needed" in ran.stderr


HOLD = """
import sys, time
from pathlib import Path
from torchkiln.store.file_locks import hold
with hold(Path(sys.argv[1]), "makes layer torch 2.7.1", needs=["a", "b"]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def other(tmp_path: Path) -> subprocess.Popen[bytes]:
    """Another process, which holds the lock tmp_path/lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "lock")], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_lock_names_its_holder(other: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """The lock file gives the holder's process ID, start time and purpose, and the items that it needs."""
    found = holder(tmp_path / "lock")

    assert found is not None
    assert (found.pid, found.what, found.needs) == (other.pid, "makes layer torch 2.7.1", ("a", "b"))
    since = time.strftime("%H:%M", time.localtime(found.since))
    assert str(found) == f"process {other.pid} (since {since}), which makes layer torch 2.7.1"


def test_the_lock_of_a_killed_process_is_free_at_once(other: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """The text in the lock file stays, and is ignored."""
    lock = tmp_path / "lock"
    os.kill(other.pid, signal.SIGKILL)
    other.wait()

    assert b"torch 2.7.1" in lock.read_bytes()
    assert holder(lock) is None
    holders: list[Holder] = []
    with hold(lock, "goes on", on_wait=holders.append):
        assert holders == []
        mine = holder(lock)
        assert mine is not None
        assert (mine.pid, mine.what) == (os.getpid(), "goes on")
    assert not lock.exists()


def test_a_waiting_process_is_notified_once_of_the_holder(
    other: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """It gets the lock as soon as the holder ends."""
    holders: list[Holder] = []

    def on_wait(found: Holder) -> None:
        holders.append(found)
        threading.Timer(0.3, other.kill).start()

    with hold(tmp_path / "lock", on_wait=on_wait):
        assert [found.pid for found in holders] == [other.pid]


def test_a_wait_can_be_cancelled(other: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """An exception raised by `check` ends the wait. The other process still holds the lock."""
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), hold(tmp_path / "lock", check=check):
        pytest.fail("two processes hold the lock")
    assert holder(tmp_path / "lock") is not None
    assert clear(tmp_path / "lock") is False


def test_a_deleted_lock_file_does_not_break_exclusion(tmp_path: Path) -> None:
    """Each thread creates the lock file and deletes it. Two threads never hold the lock at the same time."""
    inside, worst = [0], [0]

    def turn() -> None:
        for _ in range(20):
            with hold(tmp_path / "lock"):
                inside[0] += 1
                worst[0] = max(worst[0], inside[0])
                time.sleep(0.0005)
                inside[0] -= 1
            clear(tmp_path / "lock")

    threads = [threading.Thread(target=turn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (worst, inside) == ([1], [0])


def test_a_lock_without_text_is_held(tmp_path: Path) -> None:
    """The disk may have been full, or another release may hold the lock."""
    with hold(tmp_path / "lock"):
        for text in ("", "[]", '{"pid": "x"}', "{"):
            (tmp_path / "lock").write_text(text)
            found = holder(tmp_path / "lock")
            assert found is not None
            assert str(found) == "another process"
            assert found.needs is None
    assert str(Holder(pid=7, host="elsewhere", since=0.0, what="")).startswith(
        "process 7 on elsewhere (since"
    )


def test_a_folder_is_in_use_while_it_is_locked(tmp_path: Path) -> None:
    """The rootfs runtime locks the folder of an unpacked image."""
    from torchkiln.runtimes.rootfs import using

    assert not in_use(tmp_path)
    with ExitStack() as two:
        two.enter_context(using(tmp_path))
        two.enter_context(using(tmp_path))
        assert in_use(tmp_path)
    assert not in_use(tmp_path)
    assert not in_use(tmp_path / "nowhere")
