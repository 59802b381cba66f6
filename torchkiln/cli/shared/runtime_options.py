"""Defines the option --runtime from the table of runtimes, and prints a runtime's messages."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from itertools import groupby

import click

from torchkiln.cli.shared import console
from torchkiln.cli.shared.options import Decorator
from torchkiln.model.progress import Observer
from torchkiln.runtimes.table import RUNTIMES


def runtime_option(*, interactive: bool = False) -> Decorator:
    """The option --runtime; *interactive*: offer only runtimes that connect stdin and stdout."""
    names = [name for name, runtime in RUNTIMES.items() if runtime.interactive or not interactive]
    grouped = groupby(names, lambda name: RUNTIMES[name].what)
    return click.option(
        "--runtime",
        type=click.Choice(names),
        default=names[0],
        show_default=True,
        help="; ".join(f"{', '.join(same)}: {what}" for what, same in grouped),
    )


class EngineLines:
    """Prints an engine's messages and progress on stderr."""

    def say(self, line: str) -> None:
        console.say(line)

    def progress(self) -> AbstractContextManager[Observer]:
        return console.progress(quiet=not sys.stderr.isatty())
