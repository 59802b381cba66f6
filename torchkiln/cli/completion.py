"""`torchkiln completion`: prints the script that completes commands, options and values in a shell."""

from __future__ import annotations

import sys

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "zsh", "fish")
_NAME = "torchkiln"
_VARIABLE = "_TORCHKILN_COMPLETE"  # if it is set, click prints completions instead of running a command


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash: torchkiln completion bash > ~/.local/share/bash-completion/completions/torchkiln
    zsh:  torchkiln completion zsh > a folder of $fpath, as _torchkiln
    fish: torchkiln completion fish > ~/.config/fish/completions/torchkiln.fish
    """
    script = get_completion_class(shell)
    assert script is not None, f"click has no completion for {shell}"
    found = script(context.find_root().command, {}, _NAME, _VARIABLE)
    sys.stdout.write(found.source_template % found.source_vars())
