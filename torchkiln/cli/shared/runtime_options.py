"""Defines the option --runtime from the table of runtimes, and prints a runtime's messages."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager

import click

from torchkiln.cli.shared import console
from torchkiln.cli.shared.options import Decorator
from torchkiln.model.progress import Observer
from torchkiln.runtimes.table import RUNTIMES


def runtime_option() -> Decorator:
    """The option --runtime."""
    return click.option(
        "--runtime",
        type=click.Choice(list(RUNTIMES)),
        default="rootfs",
        show_default=True,
        help="; ".join(f"{name}: {runtime.what}" for name, runtime in RUNTIMES.items()),
    )


class EngineLines:
    """Prints an engine's messages and progress on stderr."""

    def say(self, line: str) -> None:
        console.say(line)

    def progress(self) -> AbstractContextManager[Observer]:
        return console.progress(quiet=not sys.stderr.isatty())
