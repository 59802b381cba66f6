"""Finds out what the terminal can show, and prints errors: the one style of all commands."""

from __future__ import annotations

import os
import sys
from typing import IO, Any

import click

from torchkiln.cli.shared.program import as_typed


def stream(*, err: bool) -> IO[Any]:
    """stderr or stdout."""
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


def print_error(message: str, hint: str = "") -> None:
    """Print an error on stderr, and what to do about it."""
    click.echo(click.style("error: ", fg="red", bold=True) + as_typed(message), err=True, color=color())
    if hint:
        click.echo(click.style("hint: ", fg="yellow") + as_typed(hint), err=True, color=color())
