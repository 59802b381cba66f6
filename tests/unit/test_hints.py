"""Commands in messages parse, and begin with the name by which the user called this program."""

from __future__ import annotations

import ast
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.commands import demand_parses
from tests.mistakes import read as read_mistakes
from tests.planned import FACTS, MATRIX
from tests.programs import run_program
from torchkiln.cli import torchkiln
from torchkiln.cli.commands import COMMANDS, EARLIER
from torchkiln.cli.shared.terminal import as_typed, program
from torchkiln.locks.folder import LockFolder
from torchkiln.matrix.tags import cell_named
from torchkiln.projects.locking import _torches
from torchkiln.util.places import ROOT

WORD = "X"  # for a value that is known only at run time
SOURCES = sorted((ROOT / "torchkiln").rglob("*.py"))
SHOWN = re.compile(rf"\btorchkiln ((?:{'|'.join((*COMMANDS, *EARLIER))})(?![\w'-])[^`;()\n]*)")
# A command such as `lock` without "torchkiln": the program's name is inserted only in place of "torchkiln".
BARE = re.compile(rf"`(?:{'|'.join((*COMMANDS, *EARLIER))})\b[^`]*`")


NEED_CELLS = {"build", "lock", "explain", "smoke", "gate", "sbom"}


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and text of each string in the code, without docstrings; WORD replaces inserted values."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and node.body
        if isinstance(node.body[0], ast.Expr)
    }
    others = docstrings | {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else WORD for part in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in others:
            yield node.lineno, node.value


def hints(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "hint":
            yield from texts(node.value)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The commands in the strings of the code, each with its file and line."""

    commands: list[tuple[str, str]]
    hints: list[tuple[str, str]]
    bare: list[str]  # commands without "torchkiln" in hints


@pytest.fixture(scope="module")
def shown() -> Shown:
    """The commands in all files; a file that does not contain "torchkiln" is not parsed."""
    found = Shown(commands=[], hints=[], bare=[])
    for file in SOURCES:
        data = file.read_bytes()
        if b"torchkiln " not in data and b"hint=" not in data:
            continue
        tree, name = ast.parse(data), file.relative_to(ROOT)
        for line, text in texts(tree):
            found.commands.extend((f"{name}:{line}", each[1].strip()) for each in SHOWN.finditer(text))
        for line, text in hints(tree):
            found.hints.extend((f"{name}:{line}", each[1].strip()) for each in SHOWN.finditer(text))
            found.bare.extend(f"{name}:{line}: {each[0]}" for each in BARE.finditer(text))
    return found


def test_messages_show_commands(shown: Shown) -> None:
    """Otherwise the next tests would pass without checking a command."""
    assert len(shown.commands) >= 40
    assert len(shown.hints) >= 40


def test_each_command_in_a_message_parses(shown: Shown) -> None:
    """It has its present name and existing options; text may follow it."""
    assert [fault for where, command in shown.commands if (fault := fault_of(where, command))] == []


def fault_of(where: str, command: str) -> str:
    """Why the command line *command* is invalid; empty if it is valid."""
    words = shlex.split(command.replace("'", "").rstrip(".,"))
    if words[0] in EARLIER:
        return f"{where}: {words[0]} is an earlier name"
    try:
        if len(words) > 1:  # a group without a command prints its help
            demand_parses(words)
    except (AssertionError, click.UsageError) as error:
        return f"{where}: {command}: {error}"
    return ""


def test_a_hint_names_the_cells_that_a_command_needs(shown: Shown) -> None:
    """A command such as `torchkiln lock` without a cell would be refused."""
    enough = {WORD, "TAG", "--all", "--torch", "--help", "--check", "project", "base", "prune"}
    without = [
        f"{where}: {command}"
        for where, command in shown.hints
        if (words := set(re.findall(r"[\w-]+", command))) & NEED_CELLS
        and not words & {"wrote", "printed"}
        and not words & enough
    ]
    assert without == []


def test_hints_name_commands_as_the_user_calls_them(shown: Shown) -> None:
    assert shown.bare == []


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("build.py", "python build.py"),
        ("/opt/x/build.py", "python /opt/x/build.py"),
        ("/usr/lib/python3/torchkiln/__main__.py", "python -m torchkiln"),
        (".venv/bin/torchkiln", ".venv/bin/torchkiln"),
        ("torchkiln", "torchkiln"),
        ("pytest", "torchkiln"),
        ("", "torchkiln"),
    ],
)
def test_the_program_is_named_as_it_was_called(
    called: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", [called])
    monkeypatch.setattr("shutil.which", lambda _: "torchkiln")
    assert program() == name
    assert as_typed("run: torchkiln lock --all; torchkiln's cache, torchkiln-lock, a/torchkiln lock") == (
        f"run: {name} lock --all; torchkiln's cache, torchkiln-lock, a/torchkiln lock"
    )


def test_a_checkout_shows_python_build_py(tmp_path: Path) -> None:
    """In a checkout, hints, help and notes show `python build.py` instead of `torchkiln`."""
    program = str(ROOT / "build.py")
    for words, text in (
        (["build"], f"hint: use --torch and --cuda, or --all; `python {program} list` shows the cells\n"),
        (["retract", "--help"], f"torchkiln: `retract` is now `python {program} withdraw`\n"),
    ):
        done = run_program([sys.executable, program, *words], cwd=tmp_path)
        assert text in done.stderr


#: Commands that need no image, lock or network, in the hints of mistakes.yaml.
FOLLOWED = sorted(
    {
        found[1].partition(" shows")[0].strip()
        for mistake in read_mistakes()
        for found in SHOWN.finditer(mistake.says.rpartition("hint: ")[2])
        if re.search(r"--help$|^list\b|^cache show", found[1].partition(" shows")[0].strip())
    }
)


@pytest.mark.parametrize("command", FOLLOWED)
def test_the_commands_in_hints_of_mistakes_work(command: str) -> None:
    ran = CliRunner().invoke(torchkiln, shlex.split(command))

    assert (ran.exit_code, ran.exception) == (0, None)
    assert len(ran.output.splitlines()) > 3


@pytest.mark.parametrize("words", [["build"], ["gate"], ["list", "--torch", "9.9"]])
def test_following_a_hint_works(words: list[str]) -> None:
    failed = CliRunner().invoke(torchkiln, words)
    hint = str(getattr(failed.exception, "hint", ""))
    found = SHOWN.search(hint)
    assert found
    followed = CliRunner().invoke(torchkiln, shlex.split(found[1].partition(" shows")[0]))
    assert isinstance(failed.exception, Exception)
    assert not isinstance(failed.exception, click.exceptions.Exit)
    assert (followed.exit_code, followed.exception) == (0, None)


def test_a_torch_of_another_cuda_is_named_with_its_driver() -> None:
    cell = cell_named("2.7.1-cuda12.1-cudnn9-runtime", MATRIX, FACTS)
    torches = _torches(LockFolder(Path(), MATRIX, FACTS), cell)
    assert torches["2.6.0"] == ""
    assert torches["2.9.1"] == " --cuda 12.8, which runs from the same driver"
    assert torches["2.15.0"] == " --cuda 13.2, which needs driver 580.65.06 or newer"
    assert next(iter(torches)) == "2.8.0"  # the newest with CUDA 12.1
