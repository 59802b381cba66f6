"""The output of a command is received while it runs, line by line."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchkiln.runtimes import capture
from torchkiln.runtimes.capture import LineSink, Tail, receive


def started(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@given(chunks=st.lists(st.text("ab\n", max_size=6).map(str.encode), max_size=12))
def test_lines_are_passed_on_whole_for_any_chunks(chunks: Sequence[bytes]) -> None:
    lines: list[bytes] = []
    sink = LineSink(lines.append)
    for chunk in chunks:
        sink.write(chunk)
    assert lines == b"".join(chunks).split(b"\n")[:-1]
    sink.close()
    assert lines == b"".join(chunks).splitlines()


def test_a_line_arrives_while_the_command_runs() -> None:
    """The command waits for a line of input, which is written when the command's first line has arrived."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", "print('ready'); print(input())"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    lines: list[bytes] = []

    def on_line(line: bytes) -> None:
        lines.append(line)
        if line == b"ready":
            assert process.stdin
            process.stdin.write(b"answer\n")
            process.stdin.close()

    timed_out = receive(process, LineSink(on_line), io.BytesIO(), timeout_s=60, kill=lambda it: it.kill())

    assert (timed_out, lines) == (False, [b"ready", b"answer"])


def test_much_output_on_both_streams_is_complete() -> None:
    process = started("import sys\nfor _ in range(40): print('o' * 99999); sys.stderr.write('e' * 99999)")
    out, err = io.BytesIO(), io.BytesIO()

    assert not receive(process, out, err, timeout_s=60, kill=lambda it: it.kill())
    assert (len(out.getvalue()), len(err.getvalue())) == (40 * 100000, 40 * 99999)


@pytest.mark.parametrize(
    "code",
    [
        "import time; print('output'); time.sleep(600)",
        "import os, time; print('output'); os.close(1); os.close(2); time.sleep(600)",
        "import time\nwhile True: print('output'); time.sleep(0.01)",
    ],
    ids=["silent", "closed its output", "never silent"],
)
def test_a_command_is_killed_after_its_time_and_its_output_remains(code: str) -> None:
    process, out, began = started(code), io.BytesIO(), time.monotonic()

    assert receive(process, out, io.BytesIO(), timeout_s=1.0, kill=lambda it: it.kill())
    assert process.returncode == -9
    assert out.getvalue().startswith(b"output\n")
    assert time.monotonic() - began < 300  # not the 600 s that it sleeps


def test_the_rest_of_a_long_line_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "_LINE_LIMIT", 8)
    lines: list[bytes] = []
    sink = LineSink(lines.append)
    for chunk in (b"0123", b"456789", b"abc\nnext", b"\n"):
        sink.write(chunk)
    assert lines == [b"01234567", b"next"]


def test_only_the_end_of_endless_output_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "_TAIL", 8)
    tail = Tail()
    for chunk in (b"0123", b"456789", b"ab"):
        tail.write(chunk)
    assert tail.getvalue() == b"456789ab"
