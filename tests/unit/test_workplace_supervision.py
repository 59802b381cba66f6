"""The supervision of services: real processes die, are restarted, and are ended together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.inside import PACKAGE
from workplace import supervision
from workplace.supervision import MOST, Service, supervise

STAYS = "echo $$ >>{pids}; exec sleep 600"
STUBBORN = "trap '' TERM; " + STAYS
# SIGTERM raises SystemExit, as it does in services.run(), a container's first process.
CONTAINER = """
import sys; sys.path.insert(0, {package!r})
import signal
from workplace import services, supervision
signal.signal(signal.SIGTERM, services._stop)
both = [
    supervision.Service(name=str(at), command=("sh", "-c", script), environ={{}}, port=1, path=None)
    for at, script in enumerate({scripts!r})
]
sys.exit(supervision.supervise(both, restart=True, say=print))
"""
# After SIGKILL, the code does not wait for processes, because they end with the container.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the intervals and the waiting times."""
    monkeypatch.setattr(supervision, "POLL", 0.01)
    monkeypatch.setattr(supervision, "GRACE", 0.5)


def service(script: str, name: str = "one", **environ: str) -> Service:
    """A service that runs a shell script; from this process's environment, it gets only PATH."""
    path = os.environ["PATH"]
    return Service(
        name=name, command=("sh", "-c", script), environ={"PATH": path} | environ, port=1, path=None
    )


def supervised(*services: Service, restart: bool = True) -> tuple[int, list[str]]:
    messages: list[str] = []
    return supervise(services, restart=restart, say=messages.append), messages


def until(happened: Callable[[], object]) -> None:
    end = time.monotonic() + 300
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


def pids(file: Path) -> Sequence[int]:
    """The process IDs in *file*, into which each process writes its own."""
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def has_ended(pid: int) -> bool:
    """Whether the process has ended; a zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_a_service_that_dies_is_restarted_a_limited_number_of_times(tmp_path: Path) -> None:
    code, messages = supervised(service(f"echo >>{tmp_path}/starts; exit 7"))

    assert code == 7
    assert (tmp_path / "starts").read_text().count("\n") == MOST
    assert len(messages) == MOST
    assert all("one" in line and "status 7" in line for line in messages)
    assert ["container exits" in line for line in messages] == [False] * (MOST - 1) + [True]


def test_without_restart_the_first_exit_is_final(tmp_path: Path) -> None:
    code, messages = supervised(service(f"echo >>{tmp_path}/starts; exit 7"), restart=False)

    assert (code, len(messages)) == (7, 1)
    assert (tmp_path / "starts").read_text().count("\n") == 1


@pytest.mark.parametrize(
    ("end", "code", "word"),
    [
        ("exit 0", 1, "status 0"),
        ("exit 1", 1, "status 1"),
        ("exit 255", 255, "status 255"),
        ("kill -KILL $$", 137, "SIGKILL"),
        ("kill -TERM $$", 143, "SIGTERM"),
        ("kill -SEGV $$", 139, "SIGSEGV"),
        ("kill -40 $$", 168, "40"),
    ],
)
def test_the_exit_code_is_that_of_the_service_and_never_0(end: str, code: int, word: str) -> None:
    """After a signal, it is the number that shells use. Real-time signals have no names."""
    found, messages = supervised(service(end), restart=False)

    assert found == code
    assert word in messages[0]


def test_sigkill_is_reported_as_possible_lack_of_memory() -> None:
    assert "memory" in supervised(service("kill -KILL $$"), restart=False)[1][0]
    assert "memory" not in supervised(service("kill -TERM $$"), restart=False)[1][0]


def test_a_restart_does_not_affect_other_services(tmp_path: Path) -> None:
    """The first service ends once and is restarted. The second one runs on, until the third one ends all."""
    died, back, notes = (tmp_path / name for name in ("died", "back", "pids"))
    once = f"[ -e {died} ] || {{ touch {died}; exit 5; }}; touch {back}; exec sleep 600"
    last = f"until [ -e {back} ]; do sleep 0.02; done; exit 9"
    other_services = (service(STAYS.format(pids=notes), "second"), service(last, "third"))
    code, messages = supervised(service(once, "first"), *other_services)

    assert code == 9
    assert [line.split()[0] for line in messages] == ["first", *["third"] * MOST]
    assert len(pids(notes)) == 1


def test_exits_far_apart_are_counted_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "WITHIN", 0.0)
    messages: list[str] = []

    def say(line: str) -> None:
        messages.append(line)
        if len(messages) > 2 * MOST:
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        supervise([service("exit 7")], restart=True, say=say)
    assert not [line for line in messages if "container exits" in line]


@pytest.mark.parametrize("script", [STAYS, STUBBORN])
def test_if_a_service_ends_finally_all_end(script: str, tmp_path: Path) -> None:
    """SIGKILL ends services that ignore SIGTERM."""
    notes = tmp_path / "pids"
    waits = f"until [ $(cat {notes} | wc -l) = 2 ]; do sleep 0.02; done; exit 4"
    stays = [service(script.format(pids=notes), name) for name in ("one", "two")]
    code, _ = supervised(*stays, service(waits, "last"), restart=False)

    assert code == 4
    assert len(pids(notes)) == 2
    until(lambda: all(has_ended(pid) for pid in pids(notes)))


def test_a_service_is_given_time_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jupyter, for example, needs time to save open files."""
    monkeypatch.setattr(supervision, "GRACE", 60.0)
    up, saved = tmp_path / "up", tmp_path / "saved"
    saves = f"trap 'sleep 0.2; echo >{saved}; exit' TERM; touch {up}; while :; do sleep 0.02; done"
    last = f"until [ -e {up} ]; do sleep 0.02; done; exit 4"
    supervised(service(saves), service(last, "last"), restart=False)

    assert saved.exists()


@pytest.mark.parametrize("script", [STAYS, STUBBORN])
def test_sigterm_ends_the_container_with_0(script: str, tmp_path: Path) -> None:
    """`docker stop` sends SIGTERM, so this is no error."""
    notes, up = tmp_path / "pids", tmp_path / "up"
    # When the second service runs, the supervisor has already recorded the first one.
    second = f"touch {up}; while kill -0 $PPID; do sleep 0.02; done"
    scripts = (script.format(pids=notes), second)
    code = CONTAINER.format(package=str(PACKAGE.parent), scripts=scripts)
    with subprocess.Popen([sys.executable, "-IBc", code], stderr=subprocess.DEVNULL) as container:
        until(lambda: pids(notes) and up.exists())
        container.send_signal(signal.SIGTERM)

        assert container.wait() == 0
    until(lambda: all(has_ended(pid) for pid in pids(notes)))


def test_a_service_that_cannot_start_stops_the_others(tmp_path: Path) -> None:
    """The message is like a shell's, and there is no traceback."""
    notes = tmp_path / "pids"
    absent = Service(name="lab", command=("/nowhere/jupyter",), environ={}, port=1, path=None)
    code, messages = supervised(service(STAYS.format(pids=notes)), absent)

    assert code == 127
    assert "lab" in messages[-1]
    assert "/nowhere/jupyter" in messages[-1]
    until(lambda: all(has_ended(pid) for pid in pids(notes)))


def test_a_service_that_can_no_longer_start_stops_the_others(tmp_path: Path) -> None:
    """Here the program deletes its own file, as if the environment broke while it ran."""
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\nrm "$0"\nexit 7\n')
    program.chmod(0o755)
    once = Service(name="one", command=(str(program),), environ=dict(os.environ), port=1, path=None)
    code, messages = supervised(once)

    assert code == 127
    assert str(program) in messages[-1]


def test_a_service_has_its_own_environment(tmp_path: Path) -> None:
    found = tmp_path / "found"
    supervised(service(f"env | grep -c . >{found}; echo $MINE >>{found}", MINE="value"), restart=False)

    count, *rest = found.read_text().split()
    assert int(count) <= 5  # PATH, MINE, and variables that a shell sets
    assert rest == ["value"]


def test_a_service_has_no_input(tmp_path: Path) -> None:
    """A service cannot read what a user types in the container's terminal."""
    code = CONTAINER.format(package=str(PACKAGE.parent), scripts=(f"cat >>{tmp_path}/found; exit 7",))
    done = subprocess.run([sys.executable, "-IBc", code], input=b"typed", stdout=subprocess.PIPE, check=False)

    assert done.returncode == 7
    assert (tmp_path / "found").read_bytes() == b""


def test_a_service_does_not_show_its_environment() -> None:
    """The environment contains Jupyter's token."""
    assert "secret" not in repr(service("true", TOKEN="secret"))
