"""`torchkiln --help`: what each command says of itself, and none of them imported."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from torchkiln.cli import COMMANDS, Commands, torchkiln

LOADED = "import sys; from torchkiln.cli import main\ntry:\n main(['--help'])\nfinally:\n print(*sys.modules)"


@pytest.mark.parametrize("width", [60, 100, 200])
def test_the_list_is_as_click_makes_it_from_the_commands(width: int) -> None:
    context = click.Context(torchkiln, info_name="torchkiln")
    ours, clicks = (click.HelpFormatter(width=width) for _ in range(2))
    Commands.format_commands(torchkiln, context, ours)
    click.Group.format_commands(torchkiln, context, clicks)
    assert ours.getvalue() == clicks.getvalue()


def test_no_command_is_imported_for_it() -> None:
    ran = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    shown, _, loaded = ran.stdout.rstrip().rpartition("\n")
    assert {line.split()[0] for line in shown.partition("Commands:\n")[2].splitlines()} == set(COMMANDS)
    assert {module for module, _ in COMMANDS.values()} & set(loaded.split()) == set()
    assert "rich" not in loaded.split()
