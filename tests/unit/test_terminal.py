"""Output on terminals with 60 and 120 columns: tags and numbers are not split; NO_COLOR, TERM=dumb."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.terminals import Screen, on_terminal
from torchkiln.cli.shared import terminal
from torchkiln.cli.shared.bars import Bars
from torchkiln.cli.shared.tables import beside, laid_out, shortened, table
from torchkiln.util.places import ROOT
from torchkiln.util.sizes import size

WIDTHS = (60, 120)
PROOF = "docs/proofs/2.0.1-cuda11.7-debian12-tier0.json"
CELL = ("--torch", "2.7", "--cuda", "12.1")
COMMANDS: Mapping[str, Sequence[str]] = {
    "list of all": ("list", "--all"),
    "pick": ("pick", "--driver", "535", "--gpu", "H100"),
    "plan": ("plan", *CELL),
    "explain": ("explain", *CELL),
    "base show": ("base", "show"),
    "smoke show": ("smoke", "show", PROOF),
    "dry run": (*CELL, "--dry-run"),
}


@cache
def piped(*arguments: str) -> str:
    """What torchkiln prints to stdout if stdout is no terminal."""
    done = forked.run(arguments, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    return done.stdout


def facts_of(name: str) -> Iterator[str]:
    """The tags and numbers of the command's JSON output, in the form in which they are printed."""
    value: Any = json.loads(piped(*COMMANDS[name], "--json"))
    if name.startswith("list"):
        for row in value:
            yield from (str(row[key]) for key in ("torch", "cuda", "tag", "min_driver") if row[key])
    elif name == "pick":
        yield from (offer["tag"] for offer in value["runs"])
    elif name == "plan":
        yield value["tag"]
        yield from (f"{layer['bytes'] / 1e6:,.1f} MB" for layer in value["layers"])
        yield from (layer["title"].rpartition(" ")[2] for layer in value["layers"])
    elif name == "explain":
        yield value["tag"]
        build = value["resolution"]["build"]
        yield from (value["resolution"]["full_driver"], build["version"], build["cudnn"], *value["gpus"])
    elif name == "dry run":
        yield value["tag"]
        yield from (size(layer["bytes"]) for layer in value["layers"])
    elif name == "base show":
        yield from (value["python"], f"{value['size']:,} bytes")


def demand_whole(parts: Sequence[str], screen: Screen) -> None:
    """Require that each of *parts* is a word of a row: on both sides is a space or the row's end."""
    rows = [f" {' '.join(row.split())} " for row in screen.rows]
    lost = [
        part
        for part in parts
        if not any(f" {part}{end}" in row for row in rows for end in (" ", ",", ";", ":"))
    ]
    assert not lost, (screen.width, lost)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", COMMANDS)
def test_tags_and_numbers_are_whole(name: str, width: int) -> None:
    """Neither values of the JSON output nor words of the output without a terminal are split."""
    screen = on_terminal(*COMMANDS[name], width=width)

    assert screen.code == 0
    words = piped(*COMMANDS[name]).split()
    demand_whole([word for word in words if len(word) <= width - 4], screen)
    demand_whole(list(facts_of(name)), screen)
    assert "…" not in screen.raw
    long = [line for line in screen.lines if len(line) > width and not line.startswith("torchkiln: ")]
    assert all(len(line.split()) == 1 for line in long)  # one word only: a digest or a path


@pytest.mark.parametrize("width", WIDTHS)
def test_no_table_cuts_a_word(width: int) -> None:
    """The rows are like those of `ls`, `gate` and `cache`; text is wrapped only at spaces."""
    tag = "2.11.0-cuda13.0-cudnn9-devel-ubuntu22.04"
    rows = [
        [
            f"{tag} {tag}-20261125",
            "sha256:0123456789ab",
            "NVIDIA H100 80GB HBM3",
            "821.2 MB",
            "retracted: " + "too slow " * 20,
        ],
        ["v2.11", "sha256:ba9876543210", "-", "1,234.5 MB", ""],
    ]
    header = ["TAGS", "DIGEST", "TESTED ON", "SIZE", "WARNINGS"]
    lines = laid_out(header, rows, width, right=(3,), text=(0, 2, 4))

    words = [word for row in (header, *rows) for cell in row for word in cell.split()]
    assert sorted(" ".join(lines).split()) == sorted(words)
    assert all(len(line) <= width for line in lines)
    for number in ("821.2 MB", "1,234.5 MB"):
        assert any(number in line for line in lines)


def test_text_is_shortened_at_a_space() -> None:
    assert shortened("cuda-runtime 12.6.77, cufile 1.11.1.6", 24) == "cuda-runtime 12.6.77…"
    assert shortened("short", 24) == "short"


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        (("list",), {"NO_COLOR": "1"}),
        (("list",), {"TERM": "dumb"}),
        (("doctor",), {"NO_COLOR": "1"}),
        (("smoke", "--shw"), {"TERM": "dumb"}),
        (("cache", "show"), {"NO_COLOR": "1"}),
    ],
    ids=str,
)
def test_no_escape_sequences(arguments: Sequence[str], setting: Mapping[str, str], tmp_path: Path) -> None:
    """There are none with NO_COLOR, and none on a terminal without colours."""
    env = {"TORCHKILN_CACHE": str(tmp_path)}
    assert on_terminal(*arguments, width=80, env={**env, **setting}).escapes == []


def test_colours_are_used_otherwise() -> None:
    assert on_terminal("list", width=80).escapes
    assert on_terminal("list", width=80, env={"NO_COLOR": ""}).escapes


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (("smoke", "--shw"), "no such option '--shw'", "smoke run --help"),
        (("explain", "--torch", "9.9"), "9.9", ""),
        (("build", "--tier", "x"), "invalid value for '--tier'", "build --help"),
    ],
    ids=["option", "cell", "value"],
)
def test_one_style_of_errors(arguments: Sequence[str], error: str, hint: str) -> None:
    """Errors of the command line, too, have the cause first and then the hint."""
    screen = on_terminal(*arguments, width=120, env={"NO_COLOR": "1"})

    first, *others = screen.lines
    assert screen.code == 2
    assert first.startswith("error: ")
    assert error in first
    assert any(line.startswith("hint: ") and line.endswith(hint) for line in others)


STRANGE = "a\x1b]0;owned\x07\x9b31m\u202eb"
PLAIN = r"a\x1b]0;owned\x07\x9b31m\u202eb"


def test_control_characters_of_strangers_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """In each way out: text, an error, a diagnostic, a table, and the name of a bar."""
    terminal.echo(STRANGE)
    terminal.say(STRANGE)
    terminal.print_error(STRANGE, STRANGE)
    table(("x",), [(f"{STRANGE}\n7 passed",)])
    with Bars() as bars:
        bars.begin("step", f"[red]{STRANGE}", 7)
        assert [task.description for task in bars._progress.tasks] == [rf"\[red]{PLAIN}"]
    seen = capsys.readouterr()
    assert seen.out == f"{PLAIN}\nx\n{PLAIN}\\n7 passed\n"
    assert seen.err.startswith(f"torchkiln: {PLAIN}\nerror: {PLAIN}\nhint: {PLAIN}\n")


def test_commands_print_only_by_functions_that_escape() -> None:
    """`click.echo` prints only JSON, and in `table` and `doctor` text in colours."""
    plain = re.compile(r"click\.s?echo\((?!json\.dumps\(|artefact\.to_json\(|cyclonedx\()")
    found = {path.name for path in (ROOT / "torchkiln/cli").rglob("*.py") if plain.search(path.read_text())}
    assert found == {"terminal.py", "tables.py", "doctor.py"}


def test_a_number_stays_with_its_unit() -> None:
    for width in range(16, 60, 3):
        lines = beside("", "174.8 MB with 21, 967.6 MB with 7, 1.2 GB with 1", width).split("\n")
        for number in ("174.8 MB", "967.6 MB", "1.2 GB"):
            assert any(number in line for line in lines), width
