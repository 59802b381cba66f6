"""The command line as a whole: help, exit codes and sentences, signals."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.oci_samples import OWN, build, tar_of
from torchkiln import cli
from torchkiln.cli import COMMANDS, Commands, torchkiln
from torchkiln.cli.verify import split_target, verify
from torchkiln.errors import ConfigError, VerificationFailed
from torchkiln.index import download
from torchkiln.index.lazy import LazyIndex
from torchkiln.model.cell import Source
from torchkiln.model.lock import LockedWheel
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

# Short sleeps: Python runs its handler between two calls, and one long call may begin just before the signal.
WORK = """
import sys, time
import torchkiln.cli as cli
def wait():
    for _ in range(15000):
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
        code = process.wait(300)
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
    found = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
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
            assert process.wait(300) == 1
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (OSError(errno.ENOSPC, "No space left"), "the cache or the output: No space left", "free space, or"),
        (
            OSError(errno.EACCES, "Permission denied", "a/b"),
            "a/b: Permission denied",
            "owner and permissions",
        ),
        (OSError(errno.EROFS, "Read-only", "a/b"), "a/b: Read-only", "choose another folder"),
        (OSError(errno.EMFILE, "Too many", "a/b"), "a/b: Too many", "ulimit -n"),
    ],
    ids=lambda value: errno.errorcode[value.errno] if isinstance(value, OSError) else "",
)
def test_what_the_system_refuses(
    error: OSError,
    message: str,
    hint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refused(**_: object) -> None:
        raise error

    monkeypatch.setattr(cli.torchkiln, "main", refused)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)  # the test run keeps its own
    with pytest.raises(SystemExit) as left:
        cli.main([])
    first, second = capsys.readouterr().err.splitlines()

    assert (left.value.code, first) == (6, f"error: {message}")
    assert second.startswith("hint: ")
    assert hint in second


def test_an_environment_that_one_may_not_use_is_passed_over(tmp_path: Path) -> None:
    """Another user's .venv; the Python at hand has what is needed."""
    door = Path(shutil.copy(ROOT / "build.py", tmp_path))
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch(mode=0o644)  # not even root may run that
    ran = subprocess.run(
        [sys.executable, door, "--version"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("torchkiln")


LOADED = "import sys; from torchkiln.cli import main\ntry:\n main(['--help'])\nfinally:\n print(*sys.modules)"


@pytest.mark.parametrize("width", [60, 100, 200])
def test_the_list_is_as_click_makes_it_from_the_commands(width: int) -> None:
    context = click.Context(torchkiln, info_name="torchkiln")
    ours, clicks = (click.HelpFormatter(width=width) for _ in range(2))
    Commands.format_commands(torchkiln, context, ours)
    click.Group.format_commands(torchkiln, context, clicks)
    assert ours.getvalue() == clicks.getvalue()


def test_no_command_is_imported_for_it() -> None:
    ran = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    shown, _, loaded = ran.stdout.rstrip().rpartition("\n")
    assert {line.split()[0] for line in shown.partition("Commands:\n")[2].splitlines()} == set(COMMANDS)
    assert {module for module, _ in COMMANDS.values()} & set(loaded.split()) == set()
    assert "rich" not in loaded.split()


def test_verify_prints_digest_and_name(tmp_path: Path) -> None:
    """stdout is data: a line an image."""
    layout = build(tmp_path, tar_of(OWN))

    done = CliRunner().invoke(verify, [f"{layout.path}:a"])

    assert (done.exit_code, done.stdout) == (0, f"{layout.image('a').manifest} a\n")


def test_verify_tells_every_fault(tmp_path: Path) -> None:
    """Exit 12 by its exception, the faults in the message and, for machines, on stdout."""
    layout = build(tmp_path, tar_of([*OWN, *OWN]))

    done = CliRunner().invoke(verify, [str(layout.path), "--json"])

    assert isinstance(done.exception, VerificationFailed)
    assert "1 fault\na layers[1]: opt/venv/x.py: duplicate entry" in done.exception.message
    assert json.loads(done.stdout) == {
        "layout": str(layout.path),
        "images": [],
        "faults": [{"where": "a layers[1]", "what": "opt/venv/x.py: duplicate entry"}],
    }


def test_verify_knows_a_slip_from_a_fault(tmp_path: Path) -> None:
    """An unknown name or folder is the user's, not the layout's."""
    layout = build(tmp_path)
    for target in (f"{layout.path}:b", str(tmp_path / "nowhere"), f"{tmp_path}/nowhere:a"):
        assert isinstance(CliRunner().invoke(verify, [target]).exception, ConfigError)


def test_verify_of_a_name_in_a_broken_layout_tells_the_faults(tmp_path: Path) -> None:
    """Not the first that the reader meets: all, as the oracle lists them."""
    layout = build(tmp_path)
    (layout.path / "index.json").write_text('{"manifests": 1}')

    done = CliRunner().invoke(verify, [f"{layout.path}:a"])

    assert isinstance(done.exception, VerificationFailed)
    assert "schemaVersion is None" in done.exception.message
    assert "manifests is not a list" in done.exception.message


def test_a_target_may_hold_colons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder wins over a split; digests have a colon too."""
    monkeypatch.chdir(tmp_path)
    os.mkdir("a:b")

    assert split_target("a:b") == (Path("a:b"), None)
    assert split_target("a:b:sha256:12") == (Path("a:b"), "sha256:12")
    assert split_target("c") == (Path("c"), None)
