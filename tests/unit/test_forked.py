"""Commands in forks behave as in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked
from torchkiln.util.places import ROOT


@pytest.mark.parametrize(
    "arguments",
    [("pick", "--driver", "535", "--gpu", "H100", "--json"), ("--x",)],
    ids=" ".join,
)
def test_exit_code_and_output_are_those_of_a_new_process(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_bytes((ROOT / "matrix.yaml").read_bytes())
    own = subprocess.run(
        [sys.executable, str(ROOT / "build.py"), *arguments], cwd=tmp_path, capture_output=True, text=True
    )
    fork = forked.run(arguments, env=os.environ, cwd=tmp_path)

    assert (fork.returncode, fork.stdout, fork.stderr) == (own.returncode, own.stdout, own.stderr)


def test_folder_variables_and_input_are_those_of_the_request(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "MARK": "1"}
    there = forked.run_bytes((), env=environ, cwd=tmp_path, stdin=b"in", target="tests.unit.test_forked:show")

    assert there.stdout.decode().splitlines() == [str(tmp_path), "MARK,PATH", "in"]
    assert "MARK" not in os.environ


def show() -> None:
    """In a fork."""
    lines = (os.getcwd(), ",".join(sorted(os.environ)), sys.stdin.read())
    sys.stdout.write("\n".join(lines))


def test_a_signal_is_the_exit_code() -> None:
    assert forked.run((), env={}, target="os:abort").returncode == -signal.SIGABRT


def test_an_exception_is_a_traceback_and_exit_code_1() -> None:
    done = forked.run((), env={}, target="tests.unit.test_forked:fail")

    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "ValueError: for the test")


def fail() -> None:
    """In a fork."""
    raise ValueError("for the test")


def test_a_command_that_hangs_is_killed_and_the_next_one_runs() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run((), env={}, target="signal:pause", timeout=0.5)
    assert forked.run(("--version",), env=os.environ).returncode == 0
