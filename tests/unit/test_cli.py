"""The command line as a whole: help, exit codes and messages, signals."""

from __future__ import annotations

import errno
import json
import os
import re
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
from tests.programs import run_program
from torchkiln import cli
from torchkiln.cli import COMMANDS, EARLIER, SECTIONS, torchkiln
from torchkiln.cli.shared.targets import split_target
from torchkiln.cli.verify import verify
from torchkiln.errors import ConfigError, VerificationFailed
from torchkiln.index import download
from torchkiln.index.lazy import LazyIndex
from torchkiln.model.cell import Source
from torchkiln.model.lock import LockedWheel
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

# Short sleeps: a long call may begin just before the signal, and Python runs the handler after the call.
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
    """Exit code, stdout and stderr of a process that gets *signals*; the second arrives during cleanup."""
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
        output = ""
        for number in signals:
            output += process.stdout.readline()
            process.send_signal(number)
        code = process.wait(300)
        return code, output + process.stdout.read(), process.stderr.read()


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
@pytest.mark.parametrize("times", [1, 2])
def test_signals(number: signal.Signals, code: int, word: str, times: int) -> None:
    """A second signal interrupts the cleanup; the message is the same, because the next run cleans up."""
    found, out, err = ended_by(*[number] * times)
    assert (found, out.split("\n")[:2]) == (code, ["working", "winding down"])
    assert err == f"error: {word}; completed work is kept, the next run continues from there\n"


# A process that was started but has not yet received its task; this state lasts half a second here.
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


def test_a_starting_worker_prints_nothing_when_all_processes_end(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(STARTING)
    found = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert (found.returncode, found.stderr) == (
        130,
        "error: interrupted; completed work is kept, the next run continues from there\n",
    )


def test_the_index_is_opened_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Many threads need the index at the same time. Opening it runs pip, which takes a second of CPU time."""
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

    def open_index() -> None:
        together.wait()
        index.tail(wheel, 1)

    threads = [threading.Thread(target=open_index) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 1


ORPHAN = """
import multiprocessing, os, sys
from torchkiln.engine.worker import start_worker
start_worker(multiprocessing.Event(), [], int(sys.argv[1]))
sys.stdin.read()
"""


def test_a_worker_ends_if_its_parent_died_early() -> None:
    """The system then gives the worker another parent, which is still running."""
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
def test_errors_of_the_operating_system(
    error: OSError,
    message: str,
    hint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refused(**_: object) -> None:
        raise error

    monkeypatch.setattr(cli.torchkiln, "main", refused)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)  # the test run keeps its handlers
    with pytest.raises(SystemExit) as left:
        cli.main([])
    first, second = capsys.readouterr().err.splitlines()

    assert (left.value.code, first) == (6, f"error: {message}")
    assert second.startswith("hint: ")
    assert hint in second


def test_an_environment_without_permission_is_skipped(tmp_path: Path) -> None:
    """A .venv of another user is skipped; the running Python has all necessary packages."""
    door = Path(shutil.copy(ROOT / "build.py", tmp_path))
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch(mode=0o644)  # not even root can execute it
    ran = run_program([sys.executable, door, "--version"], env={**os.environ, "PYTHONPATH": str(ROOT)})

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("torchkiln")


LOADED = "import sys; from torchkiln.cli import main\ntry:\n main(['--help'])\nfinally:\n print(*sys.modules)"


def groups(command: click.Command, name: str = "torchkiln") -> dict[str, click.Group]:
    """The command groups below *command*, and *command* itself if it is a group, by their full names."""
    if not isinstance(command, click.Group):
        return {}
    context = click.Context(command, info_name=name)
    found = {name: command}
    for each in command.list_commands(context):
        inner = command.get_command(context, each)
        assert inner
        found |= groups(inner, f"{name} {each}")
    return found


GROUPS = groups(torchkiln)


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("name", GROUPS)
def test_the_help_has_whole_sentences(name: str, width: int) -> None:
    """click shortens a long sentence and ends it with three dots."""
    group = GROUPS[name]
    context = click.Context(group, info_name=name, terminal_width=width)
    shown = " ".join(re.sub(r"-\n *", "-", group.get_help(context)).split())
    for each in group.list_commands(context):
        command = group.get_command(context, each)
        assert command
        assert f"{each} {command.get_short_help_str(10_000)}" in shown


def test_every_command_is_in_one_section() -> None:
    names = [name for places in SECTIONS.values() for name in places]
    assert sorted(names) == sorted(set(names)) == sorted(COMMANDS)
    assert list(SECTIONS) == ["Choose", "Build", "Test", "Publish", "Maintain"]


@pytest.mark.parametrize(("earlier", "now"), EARLIER.items())
def test_an_earlier_name_works_and_names_the_new_one(earlier: str, now: tuple[str, ...]) -> None:
    """A renamed command still works for one release. The help lists only its new name."""
    old = CliRunner().invoke(torchkiln, [earlier, "--help"])
    new = CliRunner().invoke(torchkiln, [*now, "--help"])
    assert (old.exit_code, old.stdout) == (0, new.stdout)
    assert old.stderr == f"torchkiln: `{earlier}` is now `torchkiln {' '.join(now)}`\n"
    assert f"  {earlier} " not in CliRunner().invoke(torchkiln, ["--help"]).stdout


def test_the_command_list_imports_no_command() -> None:
    ran = run_program([sys.executable, "-c", LOADED], check=True)
    shown, _, loaded = ran.stdout.rstrip().rpartition("\n")
    listed = re.findall(r"^  (\w+) ", shown.partition("Choose:\n")[2], re.MULTILINE)
    assert listed == list(COMMANDS)
    assert {module for module, _ in COMMANDS.values()} & set(loaded.split()) == set()
    assert "rich" not in loaded.split()


def test_verify_prints_digest_and_name(tmp_path: Path) -> None:
    """stdout has one line for each image, and nothing else."""
    layout = build(tmp_path, tar_of(OWN))

    done = CliRunner().invoke(verify, [f"{layout.path}:a"])

    assert (done.exit_code, done.stdout) == (0, f"{layout.image('a').manifest} a\n")


def test_verify_reports_every_fault(tmp_path: Path) -> None:
    """The exit code is 12. All faults are in the message, and also on stdout for scripts."""
    layout = build(tmp_path, tar_of([*OWN, *OWN]))

    done = CliRunner().invoke(verify, [str(layout.path), "--json"])

    assert isinstance(done.exception, VerificationFailed)
    assert "1 fault\na layers[1]: opt/venv/x.py: duplicate entry" in done.exception.message
    assert json.loads(done.stdout) == {
        "layout": str(layout.path),
        "images": [],
        "faults": [{"where": "a layers[1]", "what": "opt/venv/x.py: duplicate entry"}],
    }


def test_verify_distinguishes_user_errors_from_faults(tmp_path: Path) -> None:
    """An unknown name or folder is an error of the user, not a fault of the layout."""
    layout = build(tmp_path)
    for target in (f"{layout.path}:b", str(tmp_path / "nowhere"), f"{tmp_path}/nowhere:a"):
        assert isinstance(CliRunner().invoke(verify, [target]).exception, ConfigError)


def test_a_target_may_contain_colons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DIR:REF is not split at a colon in the name of an existing folder, or in a digest."""
    monkeypatch.chdir(tmp_path)
    os.mkdir("a:b")

    assert split_target("a:b") == (Path("a:b"), None)
    assert split_target("a:b:sha256:12") == (Path("a:b"), "sha256:12")
    assert split_target("c") == (Path("c"), None)
