"""Kernel locks that tell who has them."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from torchkiln.store.file_locks import Holder, clear, hold, holder, in_use
from torchkiln.util.places import ROOT

HOLD = """
import sys, time
from pathlib import Path
from torchkiln.store.file_locks import hold
with hold(Path(sys.argv[1]), "makes layer torch 2.7.1", needs=["a", "b"]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def other(tmp_path: Path) -> "subprocess.Popen[bytes]":
    """Another process that holds tmp_path/lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "lock")], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_lock_tells_who_has_it(other: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    """Process, since when, what for, and what it needs."""
    found = holder(tmp_path / "lock")

    assert found is not None
    assert (found.pid, found.what, found.needs) == (other.pid, "makes layer torch 2.7.1", ("a", "b"))
    since = time.strftime("%H:%M", time.localtime(found.since))
    assert str(found) == f"process {other.pid} (since {since}), which makes layer torch 2.7.1"


def test_the_lock_of_a_killed_process_is_free_at_once(
    other: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    """What it wrote is still there and counts for nothing."""
    lock = tmp_path / "lock"
    os.kill(other.pid, signal.SIGKILL)
    other.wait()

    assert b"torch 2.7.1" in lock.read_bytes()
    assert holder(lock) is None
    told: list[Holder] = []
    with hold(lock, "goes on", on_wait=told.append):
        assert told == []
        mine = holder(lock)
        assert mine is not None
        assert (mine.pid, mine.what) == (os.getpid(), "goes on")
    assert not lock.exists()


def test_who_waits_is_told_once_for_whom(other: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    """And has the lock as soon as the other is gone."""
    told: list[Holder] = []

    def on_wait(found: Holder) -> None:
        told.append(found)
        threading.Timer(0.3, other.kill).start()

    with hold(tmp_path / "lock", on_wait=on_wait):
        assert [found.pid for found in told] == [other.pid]


def test_a_wait_can_be_called_off(other: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    """By whatever `check` raises; the other's lock is as it was."""
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), hold(tmp_path / "lock", check=check):
        pytest.fail("held by two")
    assert holder(tmp_path / "lock") is not None
    assert clear(tmp_path / "lock") is False


def test_nobody_is_alone_with_a_lock_without_a_name(tmp_path: Path) -> None:
    """Many threads, a lock file that comes and goes with each turn: never two inside."""
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


def test_a_lock_that_says_nothing_is_held_all_the_same(tmp_path: Path) -> None:
    """Text that a full disk swallowed, or another release wrote."""
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


def test_a_folder_is_in_use_while_somebody_holds_it(tmp_path: Path) -> None:
    """As the rootfs runtime does."""
    from torchkiln.runtimes.rootfs import using

    assert not in_use(tmp_path)
    with ExitStack() as two:
        two.enter_context(using(tmp_path))
        two.enter_context(using(tmp_path))
        assert in_use(tmp_path)
    assert not in_use(tmp_path)
    assert not in_use(tmp_path / "nowhere")
