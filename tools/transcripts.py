#!/usr/bin/env python3
"""Real runs of the main job → docs/transcripts/*.txt, which tools/readme.py puts into the README.

Run by hand, after a build, when what a user sees has changed: it wants the real packages. Paths of this
machine are cut off; what is left out is marked with an ellipsis.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "transcripts"
CELL = "--torch 2.7 --cuda 12.1"
VERSIONS = "import torch; print(torch.__version__, torch.version.cuda, torch.backends.cudnn.version())"


def ran(arguments: list[str], *, both: bool) -> list[str]:
    """The lines that `python build.py` prints: on stdout, or on both streams as a terminal shows them."""
    done = subprocess.run(
        [sys.executable, "build.py", *arguments],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "130"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if both else None,
        text=True,
        check=True,
    )
    return [line.rstrip() for line in done.stdout.replace(f"{ROOT}{os.sep}", "").splitlines()]


def summary(lines: list[str]) -> list[str]:
    """The head of the table of layers and its end."""
    return [*lines[:4], f"          … {len(lines) - 11} layers left out", *lines[-7:]]


def object_of(lines: list[str]) -> list[str]:
    """The object of --json, indented, with one layer."""
    told = json.loads(lines[-1])
    left = len(told["layers"]) - 1
    told["layers"][1:] = [f"… {left} more"]
    told["reused"][1:] = [f"… {len(told['reused']) - 1} more"]
    return json.dumps(told, indent=2, ensure_ascii=False).splitlines()


def cut(lines: list[str]) -> list[str]:
    """All lines, the long ones shortened."""
    return [line if len(line) <= 130 else line[:128] + " …" for line in lines]


RUNS: dict[str, tuple[str, list[str], bool, Callable[[list[str]], list[str]]]] = {
    "build": (CELL, CELL.split(), True, summary),
    "json": (f"{CELL} --json", [*CELL.split(), "--json", "--quiet"], False, object_of),
    "run": (
        f"run {CELL} -- python -c '{VERSIONS}'",
        ["run", *CELL.split(), "--", "python", "-c", VERSIONS],
        False,
        cut,
    ),
    "smoke": (f"smoke run {CELL}", ["smoke", "run", "--force", *CELL.split()], True, cut),
}


def main() -> None:
    """Write the transcripts that are named, or all."""
    for name in sys.argv[1:] or RUNS:
        shown, arguments, both, shorten = RUNS[name]
        lines = [f"$ python build.py {shown}", *shorten(ran(arguments, both=both))]
        (FOLDER / f"{name}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
