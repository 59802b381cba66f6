"""What recorded transcripts show: no colours, nothing random, each line where it was typed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools.terminal import Terminal, plain
from tools.transcripts import refusal

TOKEN, CONTAINER = "0123456789abcdef" * 3, "0123456789abcdef" * 4
PRINT = "UuaXpD0fVIbZ4mB6Uhs3w6cV8cVJc7kBhcLqZ+x/9PE"


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        (f"{CONTAINER}\n", ["0123…"]),
        (f"http://127.0.0.1:8888/lab?token={TOKEN}", ["http://127.0.0.1:8888/lab?token=0123…"]),
        (f"host key SHA256:{PRINT}.", ["host key SHA256:UuaX…."]),
        ("\x1b[?2004h\x1b[1;32muser@box\x1b[0m:~$ ls\r\nfile  \r\n", ["user@box:~$ ls", "file"]),
        ("12 of 0123456789abcdef, 580.159.04", ["12 of 0123456789abcdef, 580.159.04"]),
    ],
)
def test_what_is_random_or_coloured_is_cut(shown: str, told: list[str]) -> None:
    assert plain(shown) == told


def test_each_line_is_typed_at_a_prompt(tmp_path: Path) -> None:
    """Behind the answer to the one before: a terminal would echo at once what is typed too early."""
    terminal = Terminal(home=tmp_path, environ=os.environ)
    line = """script --quiet --command "env PS1='% $ ' bash --norc -i" /dev/null"""
    shown = terminal.session(line, ["sleep 0.2; echo $((40 + 2))", "exit"])

    assert shown == ["% $ sleep 0.2; echo $((40 + 2))", "42", "% $ exit", "exit"]


def test_a_session_that_ends_too_early_is_no_transcript(tmp_path: Path) -> None:
    terminal = Terminal(home=tmp_path, environ=os.environ)

    with pytest.raises(SystemExit, match="before 'exit' was typed"):
        terminal.session("echo refused", ["exit"])


def test_pips_advice_is_left_out() -> None:
    said = [
        "ERROR",
        "    The user requested a==1",
        "    The user requested (constraint) a==2",
        "",
        "1. loosen",
    ]

    assert refusal([*said, "torchkiln: if"]) == [*said[:3], "… 2 lines of advice left out", "torchkiln: if"]
