"""Finds out what the terminal can show, and prints messages and errors: the one style of all commands.

Messages name commands as `torchkiln COMMAND`; `as_typed` replaces that by the words that the user typed, such
as `python build.py COMMAND`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

import click

from torchkiln.cli.commands import COMMANDS
from torchkiln.errors import printable

#: Whether the command prints JSON: then errors are JSON, too.
AS_JSON: ContextVar[bool] = ContextVar("AS_JSON", default=False)
_COMMAND = re.compile(rf"(?<![\w./-])torchkiln (?=(?:{'|'.join(COMMANDS)})(?![\w-]))")


def program() -> str:
    """The words that start this program."""
    called = sys.argv[0] if sys.argv else ""
    path = Path(called)
    if path.name == "build.py":
        return f"python {called}"
    if path.name == "__main__.py" and path.parent.name == "torchkiln":
        return "python -m torchkiln"
    if path.name == "torchkiln" and called != shutil.which("torchkiln"):
        return called  # the scripts of this environment are not on the PATH
    return "torchkiln"


def as_typed(text: str) -> str:
    """*text* with `program` in the commands."""
    return _COMMAND.sub(lambda _: f"{program()} ", text)


def stream(*, err: bool) -> IO[Any]:
    return sys.stderr if err else sys.stdout


def columns(*, err: bool) -> int | None:
    """The width of the terminal in characters (COLUMNS overrides it); None: the stream is no terminal."""
    if not stream(err=err).isatty():
        return None
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(stream(err=err).fileno()).columns or 80
    except OSError:
        return 80


def color() -> bool | None:
    """The `color` argument of click: False: write no escape sequences; None: only to a terminal."""
    dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    return False if dumb or os.environ.get("NO_COLOR") else None


def echo(text: str | Path, *, err: bool = False, nl: bool = True) -> None:
    """Print *text* without the control characters that a name or a file of a stranger may have."""
    click.echo(printable(str(text)), err=err, nl=nl)


def say(line: str, of: str = "torchkiln") -> None:
    """Print one line of diagnostics on stderr, after the name of what it is about."""
    echo(f"{of}: {as_typed(line)}", err=True)


def print_error(message: str, hint: str = "") -> None:
    """Print an error on stderr, and what to do about it; as one JSON object if AS_JSON is set."""
    if AS_JSON.get():
        click.echo(json.dumps({"error": as_typed(message), "hint": as_typed(hint)}), err=True)
        return
    hints = [(click.style("hint: ", fg="yellow"), hint)] if hint else []
    for title, text in [(click.style("error: ", fg="red", bold=True), message), *hints]:
        click.echo(title + printable(as_typed(text)), err=True, color=color())
