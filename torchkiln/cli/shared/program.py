"""Names this program in messages as the user called it: `torchkiln` or `python build.py`.

Errors and hints are written with `torchkiln COMMAND`; `as_typed` replaces it where they are printed.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from torchkiln.cli.commands import COMMANDS

_COMMAND = re.compile(rf"(?<![\w./-])torchkiln (?=(?:{'|'.join(COMMANDS)})(?![\w-]))")


def program() -> str:
    """The words that start this program."""
    called = sys.argv[0] if sys.argv else ""
    path = Path(called)
    if path.name == "build.py":
        return f"python {called}"
    if path.name == "__main__.py" and path.parent.name == "torchkiln":
        return "python -m torchkiln"
    if path.name == "torchkiln" and called != shutil.which("torchkiln"):
        return called  # the scripts of this environment are not on the PATH
    return "torchkiln"


def as_typed(text: str) -> str:
    """*text* with `program` in the commands."""
    return _COMMAND.sub(lambda _: f"{program()} ", text)
