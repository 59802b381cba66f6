"""Check that command lines in texts are valid."""

from __future__ import annotations

from collections.abc import Sequence

import click

from torchkiln.cli import torchkiln
from torchkiln.cli.shared.groups import DefaultGroup


def demand_parses(words: Sequence[str]) -> None:
    """Require that each of *words* is an existing command or option, with a value if it takes one.

    :raises AssertionError: when there is no such command.
    :raises click.UsageError: when an option is wrong.
    """
    context, command = click.Context(torchkiln), torchkiln
    words = ["build", *words] if words[0].startswith("-") else list(words)
    while isinstance(command, click.Group):
        if isinstance(command, DefaultGroup) and (not words or words[0] not in command.commands):
            words = [command.default_command, *words]
        found = command.get_command(context, words[0])
        assert found is not None, f"there is no command {words[0]!r}"
        command, words = found, words[1:]
        context = click.Context(command, parent=context, **command.context_settings)
    values, _, _ = command.make_parser(context).parse_args(words)
    first = values["command"][:1] if isinstance(values.get("command"), list | tuple) else []
    options = {option for parameter in command.params for option in parameter.opts}
    assert "--" in words or options.isdisjoint(first), "an option after the TAG"
