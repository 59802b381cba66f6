"""The kinds of session that people and their tools open by SSH."""

from __future__ import annotations

from collections.abc import Mapping


def sessions(look: str) -> Mapping[str, tuple[list[str], str, bool]]:
    """Each kind in which *look* runs: the command, the input, whether there is a terminal."""
    typed = f"stty -echo; PS1=; {look}; exit\n"
    return {
        "login": ([], typed, True),
        "interactive": (["bash", "-i"], typed, True),
        "command": ([look], "", False),
        "a shell that a tool starts": (["sh"], look + "\n", False),
        "a bash that a tool starts": (["bash", "--noprofile", "--norc"], look + "\n", False),
    }
