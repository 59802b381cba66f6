"""Command lines that stand somewhere, held to the command line that there is."""

from __future__ import annotations

from collections.abc import Sequence

import click

from torchkiln.cli import torchkiln


def demand_parses(words: Sequence[str]) -> None:
    """Each of *words* is a command or an option that exists, with a value where it takes one.

    :raises AssertionError: there is no such command.
    :raises click.UsageError: an option is wrong.
    """
    context, command = click.Context(torchkiln), torchkiln
    words = ["build", *words] if words[0].startswith("-") else list(words)
    while isinstance(command, click.Group):
        if command.name == "smoke" and words[0] not in command.list_commands(context):
            words = ["run", *words]
        found = command.get_command(context, words[0])
        assert found is not None, f"there is no command {words[0]!r}"
        command, words = found, words[1:]
        context = click.Context(command, parent=context)
    command.make_parser(context).parse_args(words)
