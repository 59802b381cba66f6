"""Defines the groups of commands: help that is not cut, and groups with a default command."""

from __future__ import annotations

import click

WHOLE = 10_000  # characters: click cuts a help text at a word only beyond this length


#: Names that other tools give to a command.
_SYNONYMS = {
    "clean": "prune",
    "clear": "prune",
    "purge": "prune",
    "gc": "prune",
    "ls": "show",
    "list": "show",
}


class Group(click.Group):
    """A group whose help shows the whole first sentence of each command."""

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return super().get_command(ctx, name) or super().get_command(ctx, _SYNONYMS.get(name, ""))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [
            (name, one.get_short_help_str(WHOLE)) for name, one in self.commands.items() if not one.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class DefaultGroup(Group):
    """A group with a default command: `smoke TAG` is `smoke run TAG`."""

    default_command = ""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        completing = ctx.resilient_parsing and not args  # the shell completes the name of a command
        wants_help = args in (["--help"], ["-h"])
        if not wants_help and not completing and (not args or args[0] not in self.commands):
            args = [self.default_command, *args]
        return super().parse_args(ctx, args)


def default_group(command: str) -> type[DefaultGroup]:
    """The class of a group in which *command* is the default."""
    return type("DefaultGroup", (DefaultGroup,), {"default_command": command})
