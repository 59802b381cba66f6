"""Defines the option --runtime from the table of runtimes, and prints a runtime's messages."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import click

from torchkiln.cli.shared import console
from torchkiln.cli.shared.options import Decorator, gathered, gpus_option, parse_size, shm_size_option
from torchkiln.model.progress import Observer
from torchkiln.runtimes.table import RUNTIMES


def runtime_option() -> Decorator:
    return click.option(
        "--runtime",
        type=click.Choice(list(RUNTIMES)),
        default="rootfs",
        show_default=True,
        help="; ".join(f"{name}: {runtime.what}" for name, runtime in RUNTIMES.items()),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOn:
    """Where a command runs in an image."""

    runtime: str  # a key of RUNTIMES
    gpus: str | None
    shm_size: str

    @property
    def shm_bytes(self) -> int:
        """:raises ConfigError: --shm-size is not a valid size."""
        return parse_size(self.shm_size)


run_on_options = gathered("on", RunOn, runtime_option(), gpus_option, shm_size_option)


class EngineLines:
    """Prints a runtime's messages and progress on stderr."""

    _quiet = False

    def say(self, line: str) -> None:
        console.say(line)

    def progress(self) -> AbstractContextManager[Observer]:
        return console.progress(quiet=self._quiet)
