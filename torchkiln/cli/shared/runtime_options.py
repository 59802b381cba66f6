"""The option --runtime, from the table of runtimes; and what a person hears of one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any, TypeVar

import click

from torchkiln.cli.shared import console
from torchkiln.model.progress import Observer
from torchkiln.runtimes.table import RUNTIMES

F = TypeVar("F", bound=Callable[..., Any])


def runtime_option(*, interactive: bool = False) -> Callable[[F], F]:
    """The option --runtime; *interactive*: of those alone that pass streams through."""
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
    """What is said of engines, on stderr."""

    def say(self, line: str) -> None:
        console.say(line)

    def progress(self) -> AbstractContextManager[Observer]:
        return console.progress(quiet=not sys.stderr.isatty())
